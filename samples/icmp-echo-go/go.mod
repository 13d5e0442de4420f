module icmp-echo-go

go 1.24

require pinion.internal/pinion v0.0.0

replace pinion.internal/pinion => ../../guest-sdk/go
