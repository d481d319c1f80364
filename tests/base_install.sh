#!/bin/sh
# What a device without any framework can do: called with the path of `ergo` of a base install.
set -eu
ergo=$1
"$ergo" --help > /dev/null
"$ergo" doctor | grep -q "pip install 'ergometer\[torch\]'"
"$ergo" list models | grep -q mobilenet_v2
"$ergo" exec -- sleep 0.3
"$ergo" runs | grep -q sleep
"$ergo" show last | grep -q wall_time
"$ergo" export --format csv | grep -q wall_time
"$ergo" trace last -o - 2> /dev/null | grep -q process.rss
"$ergo" report last -o - | grep -q "</html>"
"$ergo" compare last last --metric wall_time | grep -q "one value each"
if "$ergo" run lenet 2> /tmp/ergo-base.$$; then
    echo "ergo run worked without an engine" >&2
    exit 1
fi
grep -q "pip install 'ergometer\[torch\]'" /tmp/ergo-base.$$
rm -f /tmp/ergo-base.$$
