module h2o.invalid/go-proxy

go 1.18
