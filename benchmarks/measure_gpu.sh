#!/bin/bash
# All results of docs/kernels.md that need a GPU, into a folder; about four minutes on an H200.
#
#     bash benchmarks/measure_gpu.sh FOLDER                 # everything but zoo
#     bash benchmarks/measure_gpu.sh FOLDER ladder train    # some parts
#
# Parts: ladder times pytorch agreement sanitizer train, and zoo: large networks beside PyTorch, as
# a whole and by layer. MNIST is looked for as always
# ($CONVLOOM_DATA); pytorch and agreement need a PyTorch that is built for CUDA, sanitizer needs
# compute-sanitizer. A part that fails is told, and the others still run. Then, anywhere,
# `python benchmarks/kernels_doc.py --take FOLDER` keeps the results and rewrites the tables.
set -u -o pipefail
folder=${1:?name a folder for the results}
shift
mkdir -p "$folder"
here=$(dirname "$0")
python=${PYTHON:-python3}
convloom="$python -m convloom"
[ $# -gt 0 ] || set -- ladder times pytorch agreement sanitizer train
status=0

ladder() {
    for n in 64 4096; do
        $convloom bench ladder lenet --device cuda --batch-size $n --rounds 5 --seconds 0.1 --json \
            > "$folder/ladder-lenet-$n.json" || return
    done
}

times() { $python "$here/kernel_times.py" --out "$folder/times-lenet.json"; }

pytorch() {
    for n in 64 4096; do
        $convloom bench pytorch lenet --device cuda --batch-size $n --seconds 0.3 --workers 0,1,4 \
            --skip compile --json > "$folder/pytorch-lenet-$n.json" || return
    done
}

agreement() { $python -W ignore "$here/agreement.py" --seeds 0,1,2 --out "$folder"; }

sanitizer() { $python "$here/sanitize.py" --warm --out "$folder/sanitizer.txt" > /dev/null; }

zoo() {
    for network in alexnet resnet18 mobilenet-v1-small; do
        $convloom bench pytorch $network --device cuda --batch-size 128 --seconds 0.5 \
            --skip DataLoader,graph,plain,stream,resident --json \
            > "$folder/pytorch-$network-128.json" || return
    done
    $python "$here/layers_vs_pytorch.py" --network alexnet,resnet18,mobilenet-v1-small \
        --out "$folder/layers-128.json"
}

train() {
    local run
    run=$(mktemp -d)
    # The first run fills the cache of kernels.
    for kernels in auto auto naive; do
        local name=train-mnist-$kernels.txt
        {
            echo "$ convloom train lenet --data mnist --epochs 5 --device cuda --kernels $kernels"
            $convloom train lenet --data mnist --epochs 5 --device cuda --kernels $kernels \
                --out "$run/$RANDOM" 2>&1
        } | grep -v "saved in" > "$folder/${name/-auto/}" || return
    done
    rm -r "$run"
}

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
