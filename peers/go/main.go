// Takes the lock of rueidislock again and again, and prints the beginning and the end of each hold.
// The bench hot_lock starts it as it starts workers of its own: lock URL TASKS HELD SECONDS.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

// The clock that all processes of the machine share, in nanoseconds.
func now() int64 {
	var time unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &time); err != nil {
		panic(err)
	}
	return time.Nano()
}

func number(word string) int {
	number, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return number
}

func main() {
	server, err := rueidis.ParseURL(os.Args[2])
	if err != nil {
		panic(err)
	}
	tasks, seconds := number(os.Args[3]), number(os.Args[5])
	held := time.Duration(number(os.Args[4])) * time.Millisecond
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   server,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		panic(err)
	}
	hold := func(wait context.Context) (int64, int64, error) {
		_, release, err := locker.WithContext(wait, "hot")
		if err != nil {
			return 0, 0, err
		}
		from := now()
		time.Sleep(held)
		to := now()
		release()
		return from, to, nil
	}
	if _, _, err := hold(context.Background()); err != nil {
		panic(err)
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		panic(err)
	}
	// A hold loses its lock when its context ends, so the context outlives the holds. It ends a wait
	// for a lock that a process has left behind.
	end := now() + int64(seconds)*int64(time.Second)
	wait, stop := context.WithTimeout(context.Background(), time.Duration(seconds+2)*time.Second)
	defer stop()
	var working sync.WaitGroup
	lines := make([]strings.Builder, tasks)
	for task := range tasks {
		working.Go(func() {
			for now() < end {
				from, to, err := hold(wait)
				if err != nil {
					return
				}
				fmt.Fprintln(&lines[task], from, to)
			}
		})
	}
	working.Wait()
	for task := range tasks {
		fmt.Print(lines[task].String())
	}
}
