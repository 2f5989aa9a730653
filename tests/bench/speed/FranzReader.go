// franz-go, measured as Meter does. Arguments: BOOTSTRAP GROUP TOPIC COUNT.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

func now() int64 {
	var at syscall.Timespec
	// CLOCK_MONOTONIC, as in Python
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&at)), 0)
	return at.Nano()
}

func cpu() float64 {
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func resident() int {
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "VmRSS:" {
			kilobytes, _ := strconv.Atoi(words[1])
			return kilobytes
		}
	}
	return 0
}

func main() {
	wanted, err := strconv.Atoi(os.Args[4])
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.ConsumerGroup(os.Args[2]), kgo.ConsumeTopics(os.Args[3]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
	)
	if err != nil {
		panic(err)
	}
	var messages, bytes int
	var first int64
	var used float64
	for messages < wanted {
		fetches := client.PollFetches(context.Background())
		if errors := fetches.Errors(); len(errors) > 0 {
			panic(errors[0].Err)
		}
		if first == 0 && fetches.NumRecords() > 0 {
			first, used = now(), cpu()
		}
		fetches.EachRecord(func(record *kgo.Record) {
			bytes += len(record.Key) + len(record.Value)
			messages++
		})
	}
	report, _ := json.Marshal(map[string]any{
		"messages": messages, "bytes": bytes, "first": first, "last": now(),
		"cpu": cpu() - used, "rss": resident(), "p50": 0, "p99": 0,
	})
	fmt.Println(string(report))
}
