// A TCP proxy before an S3 server on the same machine: each HTTP request waits a log-normal time before it is passed on,
// as if the server were far away. Bodies are streamed, through splice(2) where the kernel has it, and connections are
// kept; nothing limits the throughput. cli/bench/s3_rig.py starts it.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// headBytesMax is more than an S3 request's line and headers take.
const headBytesMax = 64 << 10

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	upstream := flag.String("upstream", "", "address of the S3 server")
	putMs := flag.Float64("put-ms", 0, "median of what PUT, POST and DELETE wait")
	getMs := flag.Float64("get-ms", 0, "median of what GET and HEAD wait")
	sigma := flag.Float64("sigma", 0, "standard deviation of the logarithm of the wait")
	seed := flag.Uint64("seed", 7, "of the random numbers")
	sample := flag.Int("sample", 0, "print so many waits in ms, and exit")
	method := flag.String("method", "PUT", "of the requests whose waits -sample prints")
	flag.Parse()
	waits := newWaits(*putMs, *getMs, *sigma, *seed)
	if *sample > 0 {
		for range *sample {
			fmt.Println(waits.next(*method).Seconds() * 1000)
		}
		return
	}
	if err := serve(*listen, *upstream, waits); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(listen, upstream string, waits *waits) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Println("ready", listener.Addr())
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		go proxy(client.(*net.TCPConn), upstream, waits)
	}
}

// proxy serves one connection until one of its ends closes it.
func proxy(client *net.TCPConn, upstream string, waits *waits) {
	defer client.Close()
	connection, err := net.Dial("tcp", upstream)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	server := connection.(*net.TCPConn)
	defer server.Close()
	go func() {
		if err := passRequests(client, server, waits); err != nil {
			fmt.Fprintln(os.Stderr, err)
			client.Close()
		}
		server.CloseWrite()
	}()
	io.Copy(client, server)
}

// passRequests returns at the end of the client's requests.
func passRequests(client, server *net.TCPConn, waits *waits) error {
	buffered := bufio.NewReaderSize(client, headBytesMax)
	for {
		head, method, length, err := readHead(buffered)
		if err != nil {
			if failed := new(net.OpError); errors.Is(err, io.EOF) || errors.As(err, &failed) {
				return nil // the client, or the server, closed the connection
			}
			return err
		}
		time.Sleep(waits.next(method))
		if _, err := server.Write(head); err != nil {
			return nil // the answer, or its end, has reached the client
		}
		if length == chunked {
			err = passChunks(buffered, server)
		} else {
			err = passBytes(buffered, client, server, length)
		}
		if err != nil {
			return nil
		}
	}
}

// chunked is the length of a body that says itself where it ends.
const chunked = -1

// readHead returns a request's line and headers, its method and the length of its body.
func readHead(from *bufio.Reader) (head []byte, method string, length int64, err error) {
	for {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return nil, "", 0, err
		}
		if len(head)+len(line) > headBytesMax {
			return nil, "", 0, errors.New("a request's headers are too long")
		}
		text := strings.TrimRight(string(line), "\r\n")
		if head == nil {
			method, _, _ = strings.Cut(text, " ")
		}
		head = append(head, line...)
		if text == "" {
			return head, method, length, nil
		}
		name, value, _ := strings.Cut(text, ":")
		switch value = strings.TrimSpace(value); strings.ToLower(name) {
		case "content-length":
			if length, err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, "", 0, err
			}
		case "transfer-encoding":
			length = chunked
		}
	}
}

// passBytes first takes what was read together with the headers; the rest does not pass through this process's memory.
func passBytes(buffered *bufio.Reader, client, server *net.TCPConn, length int64) error {
	atHand := min(int64(buffered.Buffered()), length)
	if _, err := io.CopyN(server, buffered, atHand); err != nil {
		return err
	}
	_, err := io.CopyN(server, client, length-atHand)
	return err
}

// passChunks passes a body in chunks on as it is, with its trailers.
func passChunks(from *bufio.Reader, server *net.TCPConn) error {
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return err
		}
		if _, err := io.WriteString(server, line); err != nil {
			return err
		}
		digits, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		size, err := strconv.ParseInt(digits, 16, 64)
		if err != nil {
			return err
		}
		if size == 0 {
			return passTrailers(from, server)
		}
		if _, err := io.CopyN(server, from, size+int64(len("\r\n"))); err != nil {
			return err
		}
	}
}

func passTrailers(from *bufio.Reader, server *net.TCPConn) error {
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			return err
		}
		if _, err := io.WriteString(server, line); err != nil {
			return err
		}
		if strings.TrimSpace(line) == "" {
			return nil
		}
	}
}
