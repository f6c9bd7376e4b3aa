#!/bin/bash
# All results of docs/kernels.md that need a GPU, into a folder; about four minutes on an H200.
#
#     bash benchmarks/measure_gpu.sh FOLDER                 # everything but zoo and layers
#     bash benchmarks/measure_gpu.sh FOLDER ladder train    # some parts
#
# Parts: ladder times onchip many pytorch agreement sanitizer train, and large networks beside PyTorch:
# zoo as a whole, layers one by one. MNIST is looked for as always ($CONVLOOM_DATA); pytorch, agreement, zoo
# and layers need a PyTorch that is built for CUDA, sanitizer needs compute-sanitizer. Without a GPU
# nothing begins. A command that fails is told and leaves nothing in the folder; what others of its part
# found is kept, and the other parts still run. Then, anywhere, `python benchmarks/kernels_doc.py --take
# FOLDER` keeps the results and rewrites the tables.
set -u -o pipefail
folder=${1:?name a folder for the results}
shift
here=$(dirname "$0")
python=${PYTHON:-python3}
convloom="$python -m convloom"
[ $# -gt 0 ] || set -- ladder times onchip many pytorch agreement sanitizer train

for part in "$@"; do
    case $part in
        ladder | times | onchip | many | pytorch | agreement | sanitizer | train | zoo | layers) ;;
        *)
            echo "measure_gpu.sh: there is no part $part; see the head of $0" >&2
            exit 2
            ;;
    esac
done
missing=$($python -c 'from convloom.backends.cuda import device; print(device.missing() or "")') ||
    exit 1
if [ -n "$missing" ]; then
    echo "measure_gpu.sh: nothing is measured, no GPU can be used: $missing" >&2
    exit 1
fi
mkdir -p "$folder" || exit 1
# What a command has written so far, on the folder's own disk; and its runs.
new=$(mktemp -d "$folder/.new.XXXXXX") && scratch=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2> /dev/null; rm -rf "$new" "$scratch"' EXIT
trap 'exit 130' INT TERM

# result COMMAND...: what it writes into $new is kept if it ends well.
result() {
    "$@" && mv "$new"/* "$folder" && return
    rm -f "$new"/*
    local told=$*
    echo "failed: ${told#printed * }" >&2
    return 1
}

# printed FILE COMMAND...: what it prints is the result.
printed() {
    local file=$1
    shift
    "$@" > "$new/$file"
}

ladder() {
    local n failed=0
    for n in 64 4096; do
        result printed ladder-lenet-$n.json $convloom bench ladder lenet --device cuda \
            --batch-size $n --rounds 5 --seconds 0.1 --json || failed=1
    done
    return $failed
}

times() { result $python "$here/kernel_times.py" --out "$new/times-lenet.json"; }

onchip() {
    result $python "$here/onchip_step.py" --precision fp32,tf32,bf16 \
        --variant auto,plain,cluster2,cluster2chained,cluster2both,layers \
        --out "$new/onchip-lenet.json" > /dev/null
}

many() { result $python "$here/many_models.py" --out "$new/many-lenet.json" > /dev/null; }

pytorch() {
    local n failed=0
    for n in 64 4096; do
        result printed pytorch-lenet-$n.json $convloom bench pytorch lenet --device cuda \
            --batch-size $n --seconds 0.3 --workers 0,1,4 --skip compile --json || failed=1
    done
    return $failed
}

agreement() { result $python -W ignore "$here/agreement.py" --seeds 0,1,2 --out "$new"; }

# Errors that it finds are no result to keep, but are told.
sanitizer() { result sanitized; }

sanitized() {
    $python "$here/sanitize.py" --warm --out "$new/sanitizer.txt" > "$scratch/told" && return
    cat "$scratch/told" >&2
    return 1
}

large="alexnet resnet18 mobilenet-v1-small"

zoo() {
    local network failed=0 rows=DataLoader,graph,plain,stream,resident
    # What both engines compile is kept on disk: they do it for all networks side by side, before the
    # first is timed. A failure will be told below.
    for network in $large; do
        $convloom bench pytorch $network --device cuda --batch-size 128 --seconds 0.01 --rounds 1 \
            --skip $rows,eager > /dev/null 2>&1 &
    done
    wait
    for network in $large; do
        result printed pytorch-$network-128.json $convloom bench pytorch $network --device cuda \
            --batch-size 128 --seconds 0.3 --skip $rows --json || failed=1
    done
    return $failed
}

# Its file holds the networks that went well, and says what became of the others.
layers() {
    local failed=0
    $python "$here/layers_vs_pytorch.py" --network ${large// /,} --rounds 5 \
        --out "$new/layers-128.json" || failed=1
    [ ! -e "$new/layers-128.json" ] || mv "$new/layers-128.json" "$folder" || failed=1
    return $failed
}

train() {
    local failed=0
    # The first run of a kind fills the cache of kernels.
    result printed train-mnist.txt trained --kernels auto || failed=1
    result printed train-mnist.txt trained --kernels auto || failed=1
    result printed train-mnist-bf16.txt trained --precision bf16 || failed=1
    result printed train-mnist-bf16.txt trained --precision bf16 || failed=1
    result printed train-mnist-naive.txt trained --kernels naive || failed=1
    return $failed
}

trained() {
    {
        echo "$ convloom train lenet --data mnist --epochs 5 --device cuda $*"
        $convloom train lenet --data mnist --epochs 5 --device cuda "$@" \
            --out "$scratch/$RANDOM" 2>&1
    } | grep -v "saved in"
}

status=0
for part in "$@"; do
    SECONDS=0
    if "$part"; then
        echo "$part: $SECONDS s"
    else
        echo "$part failed" >&2
        status=1
    fi
done
exit $status
