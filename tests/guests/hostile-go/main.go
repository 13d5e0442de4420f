//go:build wasip1

// Does what a message says with Go's own library and runtime, and answers.
package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"pinion.internal/pinion"
)

// made is filled before the first packet, and its order is by the seed of this instance.
var made = map[int]int{}

var ticks int

func init() {
	for i := range 64 {
		made[i] = i
	}
	pinion.Handle(configure, handle)
	pinion.Every(2*time.Millisecond, func() { ticks++ })
}

func main() {}

func configure(config []byte) error {
	if string(config) == "refused" {
		return errors.New("this is refused")
	}
	fmt.Printf("configured with %q\n", config)
	return nil
}

func handle(packet *pinion.Packet) {
	payload, isMessage := packet.Message()
	if !isMessage {
		return
	}
	order, argument, _ := strings.Cut(string(payload), " ")
	packet.Answer([]byte(answer(order, argument)))
}

func answer(order, argument string) string {
	switch order {
	case "date":
		return fmt.Sprint(time.Now().UnixNano())
	case "sleep":
		return slept(argument)
	case "together":
		return together()
	case "random":
		bytes := make([]byte, 100_000)
		rand.Read(bytes)
		return fmt.Sprintf("%x", bytes[len(bytes)-16:])
	case "order":
		return orderOfMade()
	case "collect":
		return collect()
	case "file":
		return file()
	case "ticks":
		return fmt.Sprint(ticks)
	case "panic":
		panic("told to panic")
	}
	return "no such order: " + order
}

// slept returns the nanoseconds that a sleep of so many milliseconds took.
func slept(ms string) string {
	count, _ := strconv.Atoi(ms)
	start := time.Now()
	time.Sleep(time.Duration(count) * time.Millisecond)
	return fmt.Sprint(time.Since(start).Nanoseconds())
}

// together waits for goroutines that sleep and for a timer, and returns in which order they were done.
func together() string {
	done := make(chan string)
	for _, ms := range []int{9, 3, 6} {
		go func() {
			time.Sleep(time.Duration(ms) * time.Millisecond)
			done <- fmt.Sprint(ms)
		}()
	}
	late := time.After(time.Hour)
	var order []string
	for range 3 {
		select {
		case ms := <-done:
			order = append(order, ms)
		case <-late:
			return "late"
		}
	}
	return strings.Join(order, " ")
}

func orderOfMade() string {
	var order []string
	for key := range made {
		order = append(order, fmt.Sprint(key))
	}
	return strings.Join(order, " ")
}

// collect makes much more garbage than the memory holds.
func collect() string {
	total := 0
	for range 2_000 {
		total += len(strings.Repeat("x", 64<<10))
	}
	return fmt.Sprint(total)
}

func file() string {
	text, err := os.ReadFile("/greeting")
	if err != nil {
		return err.Error()
	}
	return string(text)
}
