package main

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// waits draws how long requests wait: exp(N(log(median), sigma)), from one sequence that the seed decides.
type waits struct {
	putMs, getMs, sigma float64
	lock                sync.Mutex
	random              *rand.Rand
}

func newWaits(putMs, getMs, sigma float64, seed uint64) *waits {
	return &waits{putMs: putMs, getMs: getMs, sigma: sigma, random: rand.New(rand.NewPCG(seed, 0))}
}

func (w *waits) next(method string) time.Duration {
	median := w.putMs
	if method == "GET" || method == "HEAD" {
		median = w.getMs
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	return time.Duration(median * math.Exp(w.random.NormFloat64()*w.sigma) * float64(time.Millisecond))
}
