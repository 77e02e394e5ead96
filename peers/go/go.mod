module peers

go 1.25.0

require (
	github.com/redis/rueidis v1.0.79
	golang.org/x/sys v0.47.0
)
