package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weir.io/weir/lab/process"
)

// Late packets: the router sends marked packets through a device that holds them for a moment, so
// that others overtake them.
const (
	lateDevice = "late"
	lateMark   = 1
	lateTable  = 99
	mostLate   = 20 * time.Millisecond
)

// delay lets the router hold marked packets for a random time, until the context
// ends.
func delay(ctx context.Context, t *topology, seed uint64) error {
	var device *os.File
	if err := t.router.Do(func() (err error) {
		device, err = openTUN(lateDevice)
		return err
	}); err != nil {
		return fmt.Errorf("make a device that holds packets: %w", err)
	}
	context.AfterFunc(ctx, func() { device.Close() })
	for _, args := range [][]string{
		{"link", "set", lateDevice, "up"},
		{"route", "add", "default", "dev", lateDevice, "table", fmt.Sprint(lateTable)},
		{"rule", "add", "fwmark", fmt.Sprint(lateMark), "table", fmt.Sprint(lateTable)},
	} {
		if _, err := process.Run(ctx, t.router, "ip", args...); err != nil {
			return err
		}
	}
	go hold(device, rand.New(rand.NewPCG(seed, 1<<41)))
	return nil
}

// hold gives every packet back after a while, until the device is closed.
func hold(device *os.File, rng *rand.Rand) {
	for {
		packet := make([]byte, 1<<16)
		n, err := device.Read(packet)
		if err != nil {
			return
		}
		packet = packet[:n:n]
		time.AfterFunc(time.Duration(rng.Int64N(int64(mostLate))), func() {
			_, _ = device.Write(packet) // lost if the device is gone
		})
	}
}

// openTUN makes a device on the calling thread's host whose packets are read and written unchanged.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
