#!/bin/sh
# What a device with one engine and no torch can do: called with its `ergo`, and a bundle made elsewhere.
set -eu
ergo=$1
bundle=$2
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
python=$(dirname "$ergo")/python
if "$python" -c "import torch" 2> /dev/null; then
    echo "torch is installed here" >&2
    exit 1
fi
"$ergo" run "$bundle" --mode train,infer --batch 16 --steps 100 --json "$out/run.json"
"$python" - "$out/run.json" << 'END'
import json, sys
records = json.load(open(sys.argv[1]))
for record in records:
    spec, peak = record["spec"], record["metrics"]["peak_memory"]["value"]
    print(f"{spec['engine']} {spec['mode']} lenet batch 16 without torch: peak memory {peak / 1e6:.1f} MB")
    assert record["status"] == "ok", record["reason"]
    assert peak <= 60e6
END
"$ergo" verify "$bundle" --engine "$3"
if "$ergo" run lenet --engine "$3" > "$out/said" 2>&1; then
    echo "a network written in torch ran without it" >&2
    exit 1
fi
tr '\n' ' ' < "$out/said" | grep -q "ergo bundle lenet"
