//go:build wasip1

package pinion

// The contract with the node, as guest-sdk/abi has it. This file is the only one that knows its version and its layouts.

import "unsafe"

// The name of the export is the version of the contract.
//
//go:wasmexport pinion_abi_v3
func exportedABI() {}

const (
	poolMagic  = uint32('P') | uint32('I')<<8 | uint32('N')<<16 | uint32('1')<<24
	slotAlign  = 64
	rxHeadroom = 64
	portReply  = 0xfffe
	portDrop   = 0xffff

	messageEtherType  = 0x88b5
	messageVersion    = 1
	messageVersionAt  = 14
	messageHeader     = 32
	messagePayloadMax = 1518 - messageHeader

	initReady         = 0
	initConfigRefused = 1
)

// poolHeader describes the packet memory to the node.
type poolHeader struct {
	magic, slotCount, slotSize, slots, ringEntries, rxRing, txRing, ownSlots uint32
}

// descriptor is one packet in a slot. Of those that arrive the node fills in by which way and when they came. Of those to send it takes
// zeros there, as this package makes no packets in slots of its own.
type descriptor struct {
	slot, offset, len, port uint16
	flags, way              uint16
	arrived                 uint32
}

// ring is a queue of descriptors between function and node. Indices count up for ever.
type ring struct {
	head, tail uint32
	_          [2]uint32
	entries    [slotCount]descriptor
}

// hostWait returns how many packets are new. Zero says that the rings are exchanged now: then it is to be called again.
//
//go:wasmimport pinion wait
func hostWait() int32

// hostWaitUntil does the same, and returns -1 when nothing has arrived and hostClock says this time or later.
//
//go:wasmimport pinion wait_until
func hostWaitUntil(deadlineNs int64) int32

//go:wasmimport pinion clock
func hostClock() int64

// hostPanic ends the instance. It does not return.
//
//go:wasmimport pinion panic
func hostPanic(text unsafe.Pointer, length uint32)

//go:wasmimport pinion config
func hostConfig(bytes unsafe.Pointer, capacity uint32) int32
