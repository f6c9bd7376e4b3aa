// CUDA C++ on the host: include this before a kernel file, and an ordinary C++20 compiler takes it.
//
// Each CUDA thread is a fiber (a light thread with its own stack) and a block's fibers take turns
// on one thread of the operating system, so a block is deterministic, `thread_local` memory is
// block-shared memory, and a debugger sees an ordinary program. What fibers do when they meet
// (barriers, shuffles, matrix instructions) is in the runtime, a library compiled once; the headers
// here only declare it, and no header of the C or C++ library is included, so that a kernel
// compiles as fast as its own text allows and sees no name that it would not see on a GPU.
//
// Left out, because no kernel that has a host twin may use them: cooperative groups, clusters,
// TMA, wgmma, mbarrier, __activemask, warp matches and reductions.
#pragma once

#define CONVLOOM_SIM 1

#include "language.h"
#include "runtime.h"
// These two need what is declared above.
#include "arithmetic.h"
#include "warp.h"
