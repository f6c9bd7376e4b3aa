#!/bin/bash
# All results of docs/kernels.md that need a GPU, into a folder; about four minutes on an H200.
#
#     bash benchmarks/measure_gpu.sh FOLDER                 # everything but zoo
#     bash benchmarks/measure_gpu.sh FOLDER ladder train    # some parts
#
# Parts: ladder times many pytorch agreement sanitizer train, and zoo: large networks beside PyTorch,
# as a whole and by layer. MNIST is looked for as always ($CONVLOOM_DATA); pytorch and agreement need
# a PyTorch that is built for CUDA, sanitizer needs compute-sanitizer. Without a GPU nothing begins. A
# part that fails is told, leaves nothing in the folder, and the others still run. Then, anywhere,
# `python benchmarks/kernels_doc.py --take FOLDER` keeps the results and rewrites the tables.
set -u -o pipefail
folder=${1:?name a folder for the results}
shift
here=$(dirname "$0")
python=${PYTHON:-python3}
convloom="$python -m convloom"
[ $# -gt 0 ] || set -- ladder times many pytorch agreement sanitizer train

for part in "$@"; do
    case $part in
        ladder | times | many | pytorch | agreement | sanitizer | train | zoo) ;;
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
# What a part has written so far, on the folder's own disk; and its runs.
new=$(mktemp -d "$folder/.new.XXXXXX") && scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$new" "$scratch"' EXIT
trap 'exit 130' INT TERM

ladder() {
    for n in 64 4096; do
        $convloom bench ladder lenet --device cuda --batch-size $n --rounds 5 --seconds 0.1 --json \
            > "$new/ladder-lenet-$n.json" || return
    done
}

times() { $python "$here/kernel_times.py" --out "$new/times-lenet.json"; }

many() { $python "$here/many_models.py" --out "$new/many-lenet.json" > /dev/null; }

pytorch() {
    for n in 64 4096; do
        $convloom bench pytorch lenet --device cuda --batch-size $n --seconds 0.3 --workers 0,1,4 \
            --skip compile --json > "$new/pytorch-lenet-$n.json" || return
    done
}

agreement() { $python -W ignore "$here/agreement.py" --seeds 0,1,2 --out "$new"; }

# Errors that it finds are no result to keep, but are told.
sanitizer() {
    $python "$here/sanitize.py" --warm --out "$new/sanitizer.txt" > "$scratch/told" && return
    cat "$scratch/told" >&2
    return 1
}

zoo() {
    for network in alexnet resnet18 mobilenet-v1-small; do
        $convloom bench pytorch $network --device cuda --batch-size 128 --seconds 0.5 \
            --skip DataLoader,graph,plain,stream,resident --json \
            > "$new/pytorch-$network-128.json" || return
    done
    $python "$here/layers_vs_pytorch.py" --network alexnet,resnet18,mobilenet-v1-small \
        --out "$new/layers-128.json"
}

train() {
    # The first run fills the cache of kernels.
    for kernels in auto auto naive; do
        local name=train-mnist-$kernels.txt
        {
            echo "$ convloom train lenet --data mnist --epochs 5 --device cuda --kernels $kernels"
            $convloom train lenet --data mnist --epochs 5 --device cuda --kernels $kernels \
                --out "$scratch/$RANDOM" 2>&1
        } | grep -v "saved in" > "$new/${name/-auto/}" || return
    done
}

status=0
for part in "$@"; do
    SECONDS=0
    if "$part" && mv "$new"/* "$folder"; then
        echo "$part: $SECONDS s"
    else
        rm -f "$new"/*
        echo "$part failed" >&2
        status=1
    fi
done
exit $status
