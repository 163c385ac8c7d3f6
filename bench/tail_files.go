package main

import (
	"context"

	"weir.io/weir/bench/queues"
	"weir.io/weir/lab/netlab"
	"weir.io/weir/lab/record"
)

// fileSize is the size of the paper's files.
const fileSize = 8 << 10

// files are nginx servers, which wait for their links.
var files = queueing{
	build: func(ctx context.Context, lab *netlab.Lab, servers int) (*queues.Lab, error) {
		return queues.NewFiles(ctx, lab, servers, fileSize, tailService)
	},
	p50:  record.Quantity{Name: "files-p50", Unit: "ms", Better: record.Lower},
	p99:  record.Quantity{Name: "files-p99", Unit: "ms", Better: record.Lower},
	late: record.Quantity{Name: "files-late-p99", Unit: "ms", Better: record.Lower},
	idle: record.Quantity{Name: "files-cpu-idle", Unit: "1", Better: record.Higher},

	degraded: record.Quantity{Name: "files-degraded", Unit: "1", Better: record.Lower},
}

var fileNotes = []string{
	"files: the same with 48 nginx of one worker each, which serve a file of 8 KiB over HTTP, and each of which has a link of its own (a class of HTB, one direction): what is sent waits there, frame by frame, so that the files of several connections take turns. The links are 2.6 Mbit/s, of which the 8 KiB take 25 ms; the other bytes of a connection, which a class's counter tells, take their time besides, and load 1 is that of all of them",
	"files-late-p99, files-cpu-idle and files-degraded are late-p99, cpu-idle and degraded",
}
