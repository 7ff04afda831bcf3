module h2o.invalid/go-client

go 1.18
