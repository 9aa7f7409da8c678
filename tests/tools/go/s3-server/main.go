// versitygw with a directory as its only backend, and the options that tests use by the names that its own command
// has: that command links the clients of three clouds, which take a third of the time to build.
//
//	s3-server [options] posix --sidecar DIRECTORY DATA
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	config := embedgw.Config{
		RootUserAccess:    os.Getenv("ROOT_ACCESS_KEY"),
		RootUserSecret:    os.Getenv("ROOT_SECRET_KEY"),
		MaxConnections:    250_000,
		MaxRequests:       100_000,
		MultipartMaxParts: 10_000,
	}
	port := flag.String("port", ":7070", "address of the S3 API")
	flag.BoolVar(&config.KeepAlive, "keep-alive", false, "")
	flag.BoolVar(&config.Quiet, "quiet", false, "")
	flag.StringVar(&config.CertFile, "cert", "", "")
	flag.StringVar(&config.KeyFile, "key", "", "")
	flag.StringVar(&config.Region, "region", "us-east-1", "")
	flag.StringVar(&config.VirtualDomain, "virtual-domain", "", "")
	flag.StringVar(&config.IAMDir, "iam-dir", "", "")
	flag.BoolVar(&config.IAMCacheDisable, "iam-cache-disable", false, "")
	user := flag.String("user", "", "NAME:SECRET of a user of --iam-dir without any right")
	flag.Parse()
	config.Ports = []string{*port}
	store := flag.NewFlagSet("posix", flag.ExitOnError)
	sidecar := store.String("sidecar", "", "directory of metadata")
	if flag.Arg(0) != "posix" || store.Parse(flag.Args()[1:]) != nil || store.NArg() != 1 {
		log.Fatal("usage: s3-server [options] posix --sidecar DIRECTORY DATA")
	}
	attributes, err := meta.NewSideCar(*sidecar)
	if err != nil {
		log.Fatal(err)
	}
	objects, err := posix.New(store.Arg(0), attributes, posix.PosixOpts{SideCarDir: *sidecar, Concurrency: 5_000, CopyObjectThreshold: 5 << 30})
	if err != nil {
		log.Fatal(err)
	}
	if name, secret, named := strings.Cut(*user, ":"); named {
		users, err := auth.New(config.IamOpts())
		if err == nil {
			err = users.CreateAccount(auth.Account{Access: name, Secret: secret, Role: auth.RoleUser})
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	context, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := embedgw.RunVersityGW(context, objects, &config); err != nil {
		log.Fatal(err)
	}
}
