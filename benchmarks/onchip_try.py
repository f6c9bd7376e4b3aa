import sys, time, numpy as np, os
sys.path.insert(0, ".")
from convloom.ops import *
from convloom.ops.control import hyper_vector
from convloom.backends.base import get_backend
from convloom.backends.cuda.onchip import plan as onchip_plan
from convloom.backends.cuda.graph import Replay
from tests.backends.harness import one_node, bind
HEAD=(SoftmaxCrossEntropy(),TopKCorrect()); POOL=MaxPool2d((2,2),(2,2))
LENET=((Conv2d(),ReLU(),Conv2d(),ReLU(),POOL,Flatten(),Linear()),(1,28,28),[(16,1,3,3),(32,16,3,3),(10,4608)])
CIFAR=((Conv2d((1,1),(2,2)),ReLU(),POOL,Conv2d(),ReLU(),POOL,Flatten(),Linear(),ReLU(),Dropout(0.5,7),Linear()),(3,32,32),[(24,3,5,5),(40,24,3,3),(120,1960),(10,120)])
CASES={"lenet":LENET,"cifar":CIFAR}
def inputs(case,n,op,seed=0):
    body,xs,ws=case
    r=np.random.default_rng(seed)
    x=r.integers(-4,5,(n,*xs)).astype(np.float32)/4
    ps=[]
    for w in ws:
        ps+= [(r.integers(-8,9,w)/8/np.sqrt(np.prod(w[1:]))).astype(np.float32),(r.integers(-8,9,w[:1])/64).astype(np.float32)]
    out=[x,*ps,r.integers(0,ws[-1][0],n)]
    if op.draws: out.append(np.array([1,2],np.uint64))
    if isinstance(op,ChainGradient): out.append(np.asarray(np.float32(1)))
    if isinstance(op,ChainUpdate): out+=[hyper_vector({"lr":0.003,"momentum":0.9})]+[np.zeros_like(p) for p in ps]
    return out
def chain(case,kind,precision="bf16"):
    k=len(case[2])
    a=((*case[0],*HEAD),(True,)*k,precision)
    return ChainUpdate(*a,update=SGD((1.0,)*2*k,(1.0,)*2*k)) if kind=="u" else ChainGradient(*a)
B=get_backend("cuda")
def make(case,n,kind,precision="bf16"):
    op=chain(case,kind,precision); ins=inputs(case,n,op)
    g=one_node(op,ins); ex=bind(g,B)
    for i,v in enumerate(ins): ex.write(f"x{i}",v)
    return op,ins,ex
def check(name,n,precision="bf16"):
    op,ins,ex=make(CASES[name],n,"g",precision)
    ex.run(); got=[ex.read(f"y{i}") for i in range(len(ex.plan.graph.nodes[0].outputs))]
    ex.run(); again=[ex.read(f"y{i}") for i in range(len(got))]
    want=op.reference(*ins)
    errs=["%.1e"%(np.abs(g-w).max()/max(np.abs(w).max(),1e-30)) for g,w in zip(got,want)]
    print(name,n,precision,"err",*errs,"identical",all(np.array_equal(a,b) for a,b in zip(got,again)),flush=True)
def timeit(call,gpu,reps=32):
    def body(count):
        for _ in range(count): call()
    r=Replay(gpu,body,1); L=32
    r.launch(L); gpu.synchronize()
    best=1e9
    for _ in range(5):
        t=time.perf_counter()
        for _ in range(4): r.launch(L)
        gpu.synchronize(); best=min(best,(time.perf_counter()-t)/4/L)
    return best*1e6
def bench(name,n,precision="bf16",config=None):
    try:
        if config: onchip_plan.DEFAULT=config
        op,ins,ex=make(CASES[name],n,"u",precision); ex.run()
        gpu=ex.gpu
        def whole():
            for c in ex.calls: c()
        each=[timeit(c,gpu) for c in ex.calls]; all_=timeit(whole,gpu)
        print(name,n,precision,config or "", "step %.2f us"%all_, "%.2fM img/s"%(n/all_), "phases",*["%.2f"%e for e in each],flush=True)
    except Exception as e:
        print(name,n,config,"FAILED",type(e),str(e)[:200],flush=True)
