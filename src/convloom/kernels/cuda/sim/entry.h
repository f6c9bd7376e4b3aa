// How the runtime calls a kernel: one entry with C linkage for each specialisation.
//
// Arguments come as 64-bit words (an address, an integer, or a float in the low half); the
// parameter's own type says which. The letters of a kernel's parameters go into the library too, so
// that a launch whose arguments do not fit is refused. A GPU would take it and read rubbish.
#pragma once

namespace convloom_sim {

template <class T>
struct Parameter;  // kernels take pointers, long long, float and double; nothing else compiles
template <>
struct Parameter<long long> {
    static constexpr char kLetter = 'i';
    static long long read(u64 word) { return static_cast<long long>(word); }
};
template <class T>
struct Parameter<T*> {
    static constexpr char kLetter = 'p';
    static T* read(u64 word) { return reinterpret_cast<T*>(word); }
};
template <>
struct Parameter<float> {
    static constexpr char kLetter = 'f';
    static float read(u64 word) { return __builtin_bit_cast(float, u32(word)); }
};
template <>
struct Parameter<double> {
    static constexpr char kLetter = 'd';
    static double read(u64 word) { return __builtin_bit_cast(double, word); }
};

// Calls on construction, because arguments in braces are evaluated from left to right.
template <class... T>
struct Call {
    Call(void (*kernel)(T...), T... arguments) { kernel(arguments...); }
};
template <class... T>
__forceinline__ void call(void (*kernel)(T...), const u64* words) {
    Call<T...>{kernel, Parameter<T>::read(*words++)...};
}

template <class Kernel>
struct Letters;
template <class... T>
struct Letters<void (*)(T...)> {
    static constexpr char value[] = {Parameter<T>::kLetter..., '\0'};
};

// Lies in this library's thread-local memory, as all static shared memory does: shows where.
static thread_local char anchor;

}  // namespace convloom_sim

#define CONVLOOM_SIM_VISIBLE extern "C" __attribute__((used, visibility("default")))

CONVLOOM_SIM_VISIBLE void* convloom_sim_anchor() { return &convloom_sim::anchor; }

// Entry number INDEX runs the kernel named by the other arguments.
#define CONVLOOM_SIM_ENTRY(INDEX, ...)                                                          \
    CONVLOOM_SIM_VISIBLE void convloom_sim_entry_##INDEX(const convloom_sim::u64* words) {      \
        convloom_sim::call(&__VA_ARGS__, words);                                                \
    }                                                                                           \
    CONVLOOM_SIM_VISIBLE const char* convloom_sim_letters_##INDEX() {                           \
        return convloom_sim::Letters<decltype(&__VA_ARGS__)>::value;                            \
    }
