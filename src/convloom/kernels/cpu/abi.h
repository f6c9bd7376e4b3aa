// The contract between the executor and the CPU kernels. Its Python side: backends/cpu/launch.py.
//
// A kernel file NAME.cpp defines, in terms of a struct P of compile-time constants,
//     template <class P> void NAME(const Arg* args, long item, Worker* worker);
// and nothing with external linkage. The generated translation unit includes each kernel file
// once and writes one extern "C" entry for every specialisation. No C++ standard library is used,
// so that compiling stays fast and any C++20 compiler serves.
#pragma once

namespace convloom {

using f32 = float;
using f64 = double;
using u8 = unsigned char;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// One argument: the address of a buffer, an integer, or a real number.
union Arg {
    void* address;
    i64 integer;
    f64 real;
};

// The thread that runs an item: its private scratch memory, 64-byte aligned, undefined at entry.
struct Worker {
    i64 index;
    char* scratch;
};

using Kernel = void (*)(const Arg* args, long item, Worker* worker);

// One parallel loop over items; a barrier follows.
struct Phase {
    Kernel kernel;
    const Arg* args;
    i64 items;
};

}  // namespace convloom
