// In which order a step's ops are computed, and which worker computes what of them.
//
// A step of few rows goes op by op, each shared out among the workers: every weight is read once, by one of them. A step
// of many rows goes block by block: between two ops that are computed together (attention, mixtures of experts) a worker
// takes a few rows at a time through all ops, with what they leave for each other in buffers of its own that stay in its
// cache. Every worker then reads all weights, but many rows share each reading, and the workers meet at those ops only.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "executor_parts.h"

namespace sojourn {
namespace {

constexpr std::int64_t kBlockBytes = 640 << 10;  // of a worker's buffers: with some weights they fit a cache of 1 MiB

const char* op_name(OpKind kind) {
  switch (kind) {
    case OpKind::Rotations: return "rotations";
    case OpKind::Embed: return "embed";
    case OpKind::RmsNorm: return "rms_norm";
    case OpKind::Quantize: return "quantize";
    case OpKind::Rope: return "rope";
    case OpKind::WriteKV: return "write_kv";
    case OpKind::Glu: return "glu";
    case OpKind::Add: return "add";
    case OpKind::Scale: return "scale";
    case OpKind::Softcap: return "softcap";
    case OpKind::Matmul: return "matmul";
    case OpKind::Experts: return "experts";
    case OpKind::Attention: break;
  }
  return "attention";
}

double seconds_now(OpClock clock) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  if (clock == OpClock::Processor) {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
#else
  (void)clock;
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds up how long a worker's ops took, and its waiting before them.
class OpTimer {
 public:
  OpTimer(OpClock clock, OpTime* times)
      : clock_(clock), times_(times), last_(clock == OpClock::Off ? 0 : seconds_now(clock)) {}
  void waited(std::size_t op) { add(op, &OpTime::wait); }
  void worked(std::size_t op) { add(op, &OpTime::work); }

 private:
  void add(std::size_t op, double OpTime::*part) {
    if (clock_ == OpClock::Off) return;
    const double now = seconds_now(clock_);
    times_[op].*part += now - last_;
    last_ = now;
  }
  OpClock clock_;
  OpTime* times_;
  double last_;
};

// Calls visit(buffer, written) for what an op reads, then for what it writes.
template <class Visit>
void visit_buffers(const Op& op, Visit visit) {
  for (const BufferId id : {op.x, op.y})
    if (id >= 0) visit(id, false);
  const bool in_place = op.kind == OpKind::Rope || op.kind == OpKind::Scale || op.kind == OpKind::Softcap;
  if (in_place) visit(op.x, true);
  if (op.out >= 0) visit(op.out, true);
  for (const BufferId id : op.outs) visit(id, true);
}

}  // namespace

// A buffer of the body crosses from one run of row ops to another if it is read in one that has not written it before.
void Executor::find_crossing_buffers() {
  for (const Op& op : body_)
    visit_buffers(op, [&](BufferId id, bool) {
      Buffer& buffer = buffers_[static_cast<std::size_t>(id)];
      buffer.crosses = false, buffer.in_body = true;
    });
  std::vector<bool> written(buffers_.size());
  for (const Op& op : body_) {
    visit_buffers(op, [&](BufferId id, bool writes) {
      const auto at = static_cast<std::size_t>(id);
      if (op.together() || (!writes && !written[at])) buffers_[at].crosses = true;
      if (writes) written[at] = true;
    });
    if (op.together()) std::fill(written.begin(), written.end(), false);
  }
  buffers_[static_cast<std::size_t>(head_input_)].crosses = true;
}

std::int64_t Executor::block_rows(std::int64_t rows) const {
  std::size_t bytes = 1;  // of one row, in the buffers that a block has of its own
  for (const Buffer& buffer : buffers_)
    if (!buffer.crosses) bytes += buffer.bytes_per_row();
  const std::int64_t fitting = kBlockBytes / static_cast<std::int64_t>(bytes) / 8 * 8;
  const std::int64_t most = std::clamp(fitting, kMinBlockRows, kMaxBlockRows);
  const std::int64_t share = rows / pool_.size();
  return share < kMinBlockRows ? 0 : most;
}

void Executor::prepare(const std::vector<Op>& ops, const Step& step) {
  for (const Op& op : ops)
    visit_buffers(op, [&](BufferId id, bool) {
      if (step.block_rows == 0 || buffers_[static_cast<std::size_t>(id)].crosses) allocate_buffer(id);
    });
  if (step.block_rows > 0 && block_buffers_.empty()) {
    block_buffers_.resize(static_cast<std::size_t>(pool_.size()));
    for (std::vector<Buffer>& buffers : block_buffers_)
      for (const Buffer& buffer : buffers_) {
        buffers.emplace_back(buffer.width);
        if (buffer.crosses) continue;
        buffers.back().allocate_data(kMaxBlockRows);
        if (buffer.codes != nullptr) buffers.back().allocate_codes(kMaxBlockRows);
      }
  }
  if (op_clock_ == OpClock::Off) return;
  op_times_.clear();
  for (int worker = 0; worker < pool_.size(); ++worker)
    for (const Op& op : ops) op_times_.push_back(time_of(op, worker));
}

OpTime* Executor::times_of(int worker, std::size_t ops) {
  return op_clock_ == OpClock::Off ? nullptr : op_times_.data() + ops * static_cast<std::size_t>(worker);
}

OpTime Executor::time_of(const Op& op, int worker) const {
  OpTime time{op_name(op.kind), 0, 0, worker, 0.0, 0.0};
  for (const int id : op.matrices) {
    const PackedMatrix& matrix = *matrices_[static_cast<std::size_t>(id)];
    time.columns += matrix.n, time.k = matrix.k;
  }
  return time;
}

void Executor::run(const std::vector<Op>& ops, Step& step, const std::function<void(int)>& finally) {
  prepare(ops, step);  // memory first, on one thread: workers may not fail
  plan_attention(ops, step);
  pool_.run([&](int worker) {
    if (step.block_rows > 0) {
      run_by_blocks(ops, step, worker);
    } else {
      run_by_ops(ops, step, worker);
    }
    if (finally) {
      pool_.barrier(worker);
      finally(worker);
    }
  });
}

void Executor::run_by_ops(const std::vector<Op>& ops, Step& step, int worker) {
  OpTimer timer(op_clock_, times_of(worker, ops.size()));
  bool previous_by_rows = true;
  std::size_t attention_index = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    if (!(op.by_rows() && previous_by_rows)) {
      pool_.barrier(worker);
      timer.waited(i);
    }
    previous_by_rows = op.by_rows();
    if (op.kind == OpKind::Matmul) {
      matmul_op(op, {0, step.rows, -1}, Share(pairs_of(op), worker, pool_.size()), weights_after(ops, i, worker, pool_.size()));
    } else if (op.together()) {
      together_op(op, step, worker, attention_index);
    } else {
      const Share rows(step.rows, worker, pool_.size());
      if (rows.begin < rows.end) row_op(op, step, {rows.begin, rows.end, -1});
    }
    timer.worked(i);
  }
}

void Executor::run_by_blocks(const std::vector<Op>& ops, Step& step, int worker) {
  OpTimer timer(op_clock_, times_of(worker, ops.size()));
  const Share rows(step.rows, worker, pool_.size());
  const std::int64_t count = rows.end - rows.begin, blocks = (count + step.block_rows - 1) / step.block_rows;
  std::size_t attention_index = 0;
  for (std::size_t i = 0; i < ops.size();) {
    if (ops[i].together()) {
      pool_.barrier(worker);
      timer.waited(i);
      together_op(ops[i], step, worker, attention_index);
      timer.worked(i++);
      continue;
    }
    if (i > 0) pool_.barrier(worker);
    timer.waited(i);
    std::size_t end = i;
    while (end < ops.size() && !ops[end].together()) ++end;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const Block block{rows.begin + count * b / blocks, rows.begin + count * (b + 1) / blocks, worker};
      for (std::size_t at = i; at < end; ++at) {
        if (ops[at].kind == OpKind::Matmul) {
          matmul_op(ops[at], block, Share(pairs_of(ops[at]), 0, 1), weights_after(ops, at, 0, 1));
        } else {
          row_op(ops[at], step, block);
        }
        timer.worked(at);
      }
    }
    i = end;
  }
}

void Executor::together_op(const Op& op, Step& step, int worker, std::size_t& attention_index) {
  if (op.kind == OpKind::Experts) {
    experts_op(op, step, worker);
  } else {
    attention_op(op, step, worker, attention_index++);
  }
}

std::int64_t Executor::pairs_of(const Op& op) const {
  std::int64_t pairs = 0;
  for (const int id : op.matrices) pairs += matrices_[static_cast<std::size_t>(id)]->panels / 2;
  return pairs;
}

// Where a worker's share of the first product after op `at` begins; nullptr where none follows.
const std::uint8_t* Executor::weights_after(const std::vector<Op>& ops, std::size_t at, int worker, int workers) const {
  const auto found = std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(at) + 1, ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::Matmul; });
  if (found == ops.end()) return nullptr;
  std::int64_t pair = Share(pairs_of(*found), worker, workers).begin;
  for (const int id : found->matrices) {
    const PackedMatrix& matrix = *matrices_[static_cast<std::size_t>(id)];
    if (pair < matrix.panels / 2) return matrix.pair(pair);
    pair -= matrix.panels / 2;
  }
  return nullptr;
}

Executor::View Executor::view(BufferId id, const Block& block) const {
  const auto at = static_cast<std::size_t>(id);
  const bool own = block.worker >= 0 && !buffers_[at].crosses;
  const Buffer& buffer = own ? block_buffers_[static_cast<std::size_t>(block.worker)][at] : buffers_[at];
  return {buffer, own ? block.begin : 0};
}

void Executor::allocate_buffer(BufferId id) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(id)];
  if (buffer.data == nullptr) buffer.allocate_data(max_rows_);
}

}  // namespace sojourn
