//go:build wasip1

// Answers ICMP echo requests, as ping sends them, over IPv4, for every destination address: icmp-echo in Go.
//
// turn makes a request's reply, in place; this file is the function around it.
package main

import "pinion.internal/pinion"

func init() {
	pinion.Handle(nil, func(packet *pinion.Packet) {
		if turn(packet.Data()) {
			packet.Reply()
		}
	})
}

// Not called: the node calls what the package pinion exports.
func main() {}
