// Scratch memory of a thread: grows to the largest request and is kept, so that steady work allocates nothing.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace pss {

// `count` floats, aligned to a cache line, contents undefined; valid until the thread's next call with the same Tag.
template <class Tag>
float* scratch(int64_t count) {
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<float, Free> block;
  thread_local int64_t size = 0;
  if (count > size) {
    block.reset();
    size = 0;
    block.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t(64))));
    size = count;
  }
  return block.get();
}

}  // namespace pss
