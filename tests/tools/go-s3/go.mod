module headrace.test/s3

go 1.26.0
