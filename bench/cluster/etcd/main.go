// etcd, built from the modules that go.mod pins. Its own main package is in a module that replaces
// others by paths, which a module that was fetched by its version can't.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
