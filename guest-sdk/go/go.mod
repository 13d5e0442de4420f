module pinion.internal/pinion

go 1.24
