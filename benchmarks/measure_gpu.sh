#!/bin/bash
# All results of docs/kernels.md and README.md that need a GPU, into a folder. That takes about a
# quarter of an hour on an H200, by the sum of parts that were timed.
#
#     bash benchmarks/measure_gpu.sh FOLDER                 # everything
#     bash benchmarks/measure_gpu.sh FOLDER ladder train    # some parts
#
# Parts: ladder times onchip many pytorch agreement sanitizer train (four minutes together); beside
# PyTorch too zoo (large networks, two minutes), layers (theirs, one by one) and dropout (a person's own
# network in bf16); alexnet (photographs learnt by heart, and a step) and cifar10 (by recipes, the
# longest).
#
# MNIST, CIFAR-10 and the photographs, imagenet-sample, are looked for in $CONVLOOM_DATA, the first two
# elsewhere too, as always. pytorch, agreement, zoo, layers and dropout need a PyTorch that is built for
# CUDA, sanitizer needs compute-sanitizer. Without a GPU nothing begins. A command that fails is told and
# leaves nothing in the folder; what others of its part found is kept, and the other parts still run.
# Then, anywhere, `python benchmarks/kernels_doc.py --take FOLDER` keeps the results and rewrites the
# tables.
set -u -o pipefail
folder=${1:?name a folder for the results}
shift
here=$(dirname "$0")
python=${PYTHON:-python3}
convloom="$python -m convloom"
parts="ladder times onchip many pytorch agreement sanitizer train zoo layers dropout alexnet cifar10"
[ $# -gt 0 ] || set -- $parts

for part in "$@"; do
    case " $parts " in
        *" $part "*) ;;
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
        --variant auto,plain,cluster2,cluster2both,unbulk,unspread,layers \
        --out "$new/onchip-lenet.json" > /dev/null &&
        result $python "$here/onchip_step.py" --precision bf16 --batches 64 \
            --variant shared,shared288,shared320,together --out "$new/onchip-threads.json" > /dev/null
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

dropout() {
    result printed pytorch-dropout-net-128.json in_root $convloom bench pytorch \
        examples/dropout_net.py:make_model --data cifar10 --batch-size 128 --device cuda \
        --precision bf16 --seconds 0.3 --skip DataLoader,stream --json
}

in_root() { (cd "$here/.." && "$@"); }

alexnet() {
    local failed=0 photographs=${CONVLOOM_DATA:-}/imagenet-sample
    if [ -d "$photographs" ]; then
        result printed alexnet-fit.txt told \
            "python benchmarks/alexnet.py fit PHOTOGRAPHS --device cuda" \
            $python "$here/alexnet.py" fit "$photographs" --device cuda || failed=1
    else
        echo "failed: there is no folder ${photographs##*/} in ${CONVLOOM_DATA:-nothing}," \
            "which \$CONVLOOM_DATA names" >&2
        failed=1
    fi
    result printed alexnet-step.txt told \
        "python benchmarks/alexnet.py step --batch-size 512 --device cuda" \
        $python "$here/alexnet.py" step --batch-size 512 --device cuda || failed=1
    return $failed
}

cifar10() {
    local network failed=0
    for network in vgg-small resnet20; do
        result printed cifar10-$network.txt trained $network --data cifar10 || failed=1
    done
    return $failed
}

train() {
    local failed=0 mnist="lenet --data mnist --epochs 5"
    # The first run of a kind fills the cache of kernels.
    result printed train-mnist.txt trained $mnist --kernels auto || failed=1
    result printed train-mnist.txt trained $mnist --kernels auto || failed=1
    result printed train-mnist-bf16.txt trained $mnist --precision bf16 || failed=1
    result printed train-mnist-bf16.txt trained $mnist --precision bf16 || failed=1
    result printed train-mnist-naive.txt trained $mnist --kernels naive || failed=1
    return $failed
}

trained() {
    told "convloom train $* --device cuda" $convloom train "$@" --device cuda --out "$scratch/$RANDOM"
}

# told TEXT COMMAND...: the command as TEXT, where it runs, and what it prints but for names of folders.
told() {
    echo "$ $1"
    $python -c "$origin" || return
    shift
    "$@" > "$scratch/told" 2>&1 || { cat "$scratch/told" >&2; return 1; }
    sed "/saved in/d; /the best epoch on/d; /has training images alone/d" "$scratch/told"
}

origin='
from convloom.backends.cuda.gpu import open_gpu
from convloom.inspection.environment import environment, origin
print(origin(environment("cuda", open_gpu().name)))'

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
