//go:build wasip1

// Package pinion is what a network function in Go needs besides Go's own library: packets, and its configuration. The rest is Go's: what a
// function prints is its log, time.Now is the date, crypto/rand draws from the node, time.Sleep suspends the instance.
//
//	func init() { pinion.Handle(nil, func(packet *pinion.Packet) { packet.Reply() }) }
//
//	func main() {}
//
// Build it with GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared.
package pinion

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"
)

var (
	configure func(config []byte) error
	handle    func(packet *Packet)

	tick     func()
	interval time.Duration
)

// Handle says what the function does. It is to be called once, by an init function of the main package: main is not called. configuring gets the
// configuration, in each instance before its first packet, and may refuse it; if it is nil, any configuration is refused. handling gets each
// packet.
func Handle(configuring func(config []byte) error, handling func(packet *Packet)) {
	configure, handle = configuring, handling
}

// Every has ticking called again and again, with so much time in between, from the first packet of an instance on. It is to be called once, by an
// init function or while the configuration is read. The interval is at least a microsecond.
func Every(between time.Duration, ticking func()) {
	interval, tick = max(between, time.Microsecond), ticking
}

// Packet is a frame that the node has received. It is used until it is sent or dropped, or until the function's handler returns, which drops it.
type Packet struct {
	descriptor
	isGone bool
}

// Data returns the frame, from its Ethernet header on, without its checksum. It may be changed in place.
func (p *Packet) Data() []byte {
	p.mustBeHere()
	return slot(p.slot)[p.offset : p.offset+p.len]
}

// Resize sets the length of the frame, and returns it. Bytes that are added have any value. It panics if the slot has no room for them.
func (p *Packet) Resize(length int) []byte {
	p.mustBeHere()
	if length < 1 || int(p.offset)+length > slotSize {
		panic(fmt.Sprintf("pinion: a frame of %d bytes, and from 1 to %d are possible", length, slotSize-int(p.offset)))
	}
	p.len = uint16(length)
	return p.Data()
}

// Message returns the payload of a call by name (pinion invoke), and whether the packet is one. Answer answers it.
func (p *Packet) Message() ([]byte, bool) {
	frame := p.Data()
	if len(frame) < messageHeader || binary.BigEndian.Uint16(frame[12:]) != messageEtherType ||
		frame[messageVersionAt] != messageVersion {
		return nil, false
	}
	return frame[messageHeader:], true
}

// Answer answers a call by name with a payload. It panics if the payload is longer than 1486 bytes, or the packet is no message.
func (p *Packet) Answer(payload []byte) {
	if _, isMessage := p.Message(); !isMessage || len(payload) > messagePayloadMax {
		panic(fmt.Sprintf("pinion: %d bytes are no answer: at most %d are, to a message", len(payload), messagePayloadMax))
	}
	copy(p.Resize(messageHeader + len(payload))[messageHeader:], payload)
	p.Reply()
}

// Port returns the index of the node's port by which the frame came in.
func (p *Packet) Port() int { return int(p.port) }

// Reply sends the frame back by the port by which it came in.
func (p *Packet) Reply() { p.send(portReply) }

// Send sends the frame to one of the stage's outputs. 0 is the next stage, or out of the node after the last one.
func (p *Packet) Send(output int) {
	if output < 0 || output >= 16 {
		panic(fmt.Sprintf("pinion: there is no output %d, and 15 is the last possible", output))
	}
	p.send(uint16(output))
}

// Drop drops the frame.
func (p *Packet) Drop() { p.send(portDrop) }

func (p *Packet) send(port uint16) {
	p.mustBeHere()
	p.isGone = true
	d := p.descriptor
	d.port = port
	transmit(d)
}

func (p *Packet) mustBeHere() {
	if p.isGone {
		panic("pinion: a packet was used after it was sent or dropped")
	}
}

//go:wasmexport pinion_init
func exportedInit() int32 {
	defer endOnPanic()
	if err := prepare(); err != nil {
		// The last line of the log is what the tenant is told.
		fmt.Fprintln(os.Stderr, err)
		return initConfigRefused
	}
	return initReady
}

func prepare() error {
	config := make([]byte, hostConfig(nil, 0))
	if len(config) > 0 {
		hostConfig(unsafe.Pointer(&config[0]), uint32(len(config)))
	}
	switch {
	case handle == nil:
		return fmt.Errorf("no init function has called pinion.Handle")
	case configure != nil:
		return configure(config)
	case len(config) > 0:
		return fmt.Errorf("this function has no configuration, but was given %d bytes", len(config))
	}
	return nil
}

// endOnPanic ends the instance if the function panics, with the panic's message as the reason that its tenant is told. Go itself would write many
// lines to the log, and exit.
func endOnPanic() {
	if reason := recover(); reason != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", reason, debug.Stack())
		text := []byte(fmt.Sprint(reason, " "))
		hostPanic(unsafe.Pointer(&text[0]), uint32(len(text)))
	}
}

//go:wasmexport pinion_run
func exportedRun() {
	defer endOnPanic()
	nextNs := hostClock() + int64(interval)
	for {
		count := int32(0)
		if tick == nil {
			count = hostWait()
		} else if count = hostWaitUntil(nextNs); hostClock() >= nextNs {
			tick()
			nextNs = hostClock() + int64(interval)
		}
		for ; count > 0; count-- {
			packet := Packet{descriptor: receive()}
			handle(&packet)
			if !packet.isGone {
				packet.Drop()
			}
		}
		// Lets other goroutines run, those of the collector included: none does during a wait.
		runtime.Gosched()
	}
}
