//go:build wasip1

package pinion

import "unsafe"

const (
	slotCount = 64
	// An odd number of cache lines: slots at addresses a power of two apart would share few sets of a processor's caches.
	slotSize = 2112
)

// memory is the packet memory. Go does not move variables of a package. It is longer than what lies in it, as Go does not align it as the node
// expects.
var memory [slotAlign + 2*unsafe.Sizeof(ring{}) + slotAlign + slotCount*slotSize]byte

var (
	header poolHeader
	rx, tx *ring
	slots  unsafe.Pointer
)

func aligned(at unsafe.Pointer) unsafe.Pointer {
	return unsafe.Add(at, -uintptr(at)&(slotAlign-1))
}

func address(at unsafe.Pointer) uint32 { return uint32(uintptr(at)) }

//go:wasmexport pinion_pool
func exportedPool() uint32 {
	rings := aligned(unsafe.Pointer(&memory))
	rx, tx = (*ring)(rings), (*ring)(unsafe.Add(rings, unsafe.Sizeof(ring{})))
	slots = aligned(unsafe.Add(rings, 2*unsafe.Sizeof(ring{})))
	header = poolHeader{
		magic:       poolMagic,
		slotCount:   slotCount,
		slotSize:    slotSize,
		slots:       address(slots),
		ringEntries: slotCount,
		rxRing:      address(unsafe.Pointer(rx)),
		txRing:      address(unsafe.Pointer(tx)),
	}
	return address(unsafe.Pointer(&header))
}

// receive takes the next descriptor from the receive ring. wait has said that there is one.
func receive() descriptor {
	d := rx.entries[rx.head%slotCount]
	rx.head++
	return d
}

// transmit puts a descriptor into the transmit ring. A slot is in it at most once, so it is never full.
func transmit(d descriptor) {
	d.flags, d.way, d.arrived = 0, 0, 0
	tx.entries[tx.tail%slotCount] = d
	tx.tail++
}

// slot returns the bytes of a slot that belongs to the function.
func slot(number uint16) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(slots, uintptr(number%slotCount)*slotSize)), slotSize)
}
