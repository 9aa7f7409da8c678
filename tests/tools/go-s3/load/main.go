// Sends PUTs or GETs to presigned URLs, one after the other on each of some connections, and prints what that took as
// one line of JSON. load/benchmarks/s3_rig.py starts it: a client that costs little beside the S3 server that it measures.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const bufferBytes = 256 << 10

// answer is what load/benchmarks/s3_rig.py reads.
type answer struct {
	Requests int     `json:"requests"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
}

func main() {
	method := flag.String("method", http.MethodGet, "PUT or GET")
	size := flag.Int64("size", 0, "bytes of each object")
	connections := flag.Int("connections", 1, "requests at a time, each on its own connection")
	seconds := flag.Float64("seconds", 1, "no request begins later")
	flag.Parse()
	urls, err := readLines(os.Stdin)
	if err == nil && len(urls) < *connections {
		err = fmt.Errorf("%d URLs for %d connections", len(urls), *connections)
	}
	var found answer
	if err == nil {
		found, err = run(*method, urls, *size, *connections, time.Duration(*seconds*float64(time.Second)))
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func readLines(from io.Reader) (lines []string, err error) {
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	return lines, scanner.Err()
}

// run gives each connection its share of the URLs, so that no two PUTs have the same key at a time.
func run(method string, urls []string, size int64, connections int, length time.Duration) (answer, error) {
	client := http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: connections,
		ReadBufferSize:      bufferBytes,
		WriteBufferSize:     bufferBytes,
		DisableCompression:  true,
	}}
	var failure atomic.Pointer[error]
	each := make([][]time.Duration, connections)
	started := time.Now()
	var group sync.WaitGroup
	for index := range connections {
		group.Go(func() {
			requester := requester{client: &client, method: method, body: make([]byte, size), buffer: make([]byte, bufferBytes)}
			for turn := index; time.Since(started) < length && failure.Load() == nil; turn += connections {
				if turn >= len(urls) {
					turn = index
				}
				began := time.Now()
				if err := requester.send(urls[turn]); err != nil {
					failure.Store(&err)
					return
				}
				each[index] = append(each[index], time.Since(began))
			}
		})
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return answer{}, *err
	}
	took, latencies := time.Since(started), slices.Concat(each...)
	if len(latencies) == 0 {
		return answer{}, errors.New("no request began within the time")
	}
	return total(latencies, size, took), nil
}

func total(latencies []time.Duration, size int64, took time.Duration) answer {
	slices.Sort(latencies)
	at := func(part float64) float64 {
		return latencies[int(float64(len(latencies)-1)*part)].Seconds() * 1000
	}
	return answer{len(latencies), int64(len(latencies)) * size, took.Seconds(), at(0.5), at(0.99)}
}

type requester struct {
	client       *http.Client
	method       string
	body, buffer []byte
}

func (r *requester) send(url string) error {
	var content io.Reader
	if r.method == http.MethodPut {
		content = bytes.NewReader(r.body)
	}
	request, err := http.NewRequest(r.method, url, content)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	read, err := io.CopyBuffer(sink{}, response.Body, r.buffer)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", r.method, response.Status)
	}
	if r.method == http.MethodGet && read != int64(len(r.body)) {
		return fmt.Errorf("GET: %d bytes instead of %d", read, len(r.body))
	}
	return nil
}

// sink is io.Discard without ReadFrom, which would read 8 KiB at a time.
type sink struct{}

func (sink) Write(some []byte) (int, error) { return len(some), nil }
