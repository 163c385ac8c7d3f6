package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// A wire is at a guest's network card. Nothing else is on it than what answers here: the guest sends a
// frame with this EtherType, the first of IEEE 802 for experiments, which has a number of times and another
// frame in it, and gets that frame so many times. So a test in the guest says what comes, and counts it.
const wireRequest = 0x88b5

const longestFrame = 1 << 16

// newWire returns the card's end, for qemu, and a function that ends the other one. The socket loses nothing:
// a sender waits until there is room.
func newWire() (card *os.File, end func(), err error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a wire: %w", err)
	}
	card = os.NewFile(uintptr(ends[0]), "card")
	own := os.NewFile(uintptr(ends[1]), "wire")
	conn, err := net.FileConn(own) // a copy
	own.Close()
	if err != nil {
		card.Close()
		return nil, nil, fmt.Errorf("make a wire: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(conn)
	}()
	return card, func() { conn.Close(); <-done }, nil
}

// answer does what requests say, until the wire has ended.
func answer(conn net.Conn) {
	buffer := make([]byte, longestFrame)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		frame, times := requested(buffer[:n])
		for range times {
			if _, err := conn.Write(frame); err != nil {
				return
			}
		}
	}
}

// requested is what a frame asks for: after the EtherType two bytes of how many times, two of how long the
// frame is, and the frame. Other frames, of the guest's kernel, ask for nothing.
func requested(frame []byte) (wanted []byte, times int) {
	const header = 14
	if len(frame) < header+4 || number(frame[12:]) != wireRequest {
		return nil, 0
	}
	body := frame[header:]
	length := number(body[2:])
	if length > len(body)-4 {
		return nil, 0
	}
	return body[4 : 4+length], number(body)
}

func number(twoBytes []byte) int { return int(twoBytes[0])<<8 | int(twoBytes[1]) }
