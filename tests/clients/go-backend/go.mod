module h2o.invalid/go-backend

go 1.18
