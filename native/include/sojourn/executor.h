// A model as a list of ops over buffers, captured once and replayed for any batch. One call computes one step.
//
// Ops are of three kinds by how they share work: row ops give each worker a run of rows, matrix ops a run of panels,
// attention a queue of items (a mixture of experts is all three in turn). Workers meet only where the kind changes, or
// where a matrix op follows another. In a step of many rows matrix ops are shared out by rows too, and workers meet at
// attention and mixtures alone (executor_schedule.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sojourn/formats.h"
#include "sojourn/isa.h"
#include "sojourn/thread_pool.h"

namespace sojourn {

using BufferId = int;  // a float array [rows, width] in the arena, perhaps with a quantized copy

// What a step is computed from; mirrors records.StepPlan. The caller keeps the arrays alive during `forward`.
struct StepInput {
  std::int64_t tokens = 0, sequences = 0, table_width = 0;
  const std::int32_t* token_ids = nullptr;     // [tokens]
  const std::int32_t* positions = nullptr;     // [tokens]
  const std::int32_t* cu_seqlens = nullptr;    // [sequences + 1]
  const std::int32_t* block_tables = nullptr;  // [sequences, table_width]
};

// A weight left as the file stores it, whose rows are read one at a time. The caller keeps the bytes alive.
struct StoredRows {
  const FormatInfo* info;
  const std::uint8_t* data;
  std::int64_t rows, k;
};

// What ops are timed by. A thread's processor time leaves out what other programs take, and costs more to read.
enum class OpClock { Off, Wall, Processor };

// How long one worker took for one op of the last run, and how long it waited for the others before that.
struct OpTime {
  const char* kind;
  std::int64_t columns, k;  // matrix ops: of all matrices together; else 0
  int worker;
  double wait, work;  // seconds
};

// Numbers of the matrices of each expert of a mixture.
struct ExpertWeights {
  std::vector<int> gate, up, down;
};

struct AttentionWork;
struct Op;
struct Share;
struct Step;
struct Tile;

class Executor {
 public:
  // `max_rows`: the most tokens a step has.
  Executor(Isa isa, int threads, std::int64_t max_rows);
  ~Executor();

  // --- Building, in execution order. Ids are checked: std::out_of_range.
  BufferId add_buffer(std::int64_t width);
  int add_matrix(std::shared_ptr<const PackedMatrix> matrix);
  int add_vector(const float* values, std::int64_t count);  // copied
  int add_rotation(const double* inverse_frequencies, std::int64_t half, float scale);  // copied
  // `key_center` as in KVLayer, copied; may be null.
  int add_kv_layer(const AttentionShape& shape, std::int64_t num_blocks, const float* key_center = nullptr);

  void embed(BufferId out, const StoredRows& table, float scale);
  void rms_norm(BufferId x, BufferId out, int weight, std::int64_t group, float eps, float offset);
  void quantize(BufferId x);
  // out[i] = x @ matrices[i].T (+ bias, -1 for none) (+ residual, -1 for none; one matrix only).
  void matmul(BufferId x, const std::vector<int>& matrices, const std::vector<BufferId>& outs,
              const std::vector<int>& biases, BufferId residual);
  void rope(BufferId x, std::int64_t head_dim, int rotation);
  void attention(BufferId q, BufferId k, BufferId v, BufferId out, int kv_layer);
  void glu(BufferId gate, BufferId up, BufferId out, Activation activation);
  // out = sum over the top_k experts of each row, by a softmax of its scores, of weight * down(activation(gate(x)) * up(x)).
  // `normalize`: the weights of the chosen ones sum to 1.
  void experts(BufferId x, BufferId scores, BufferId out, ExpertWeights weights, std::int64_t top_k, bool normalize,
               Activation activation);
  void add(BufferId a, BufferId b, BufferId out);
  void scale(BufferId x, float factor);
  void softcap(BufferId x, float cap);
  // What follows runs over the rows given to `head`, not over the step's tokens.
  void begin_head(BufferId hidden);

  // Gives every layer K and V of so many blocks, their contents undefined; for when their number follows from the rest.
  void allocate_kv(std::int64_t num_blocks);

  // --- Running. Not thread-safe: one caller at a time. Neither may be called before building is done.
  // Computes the body; `hidden` [tokens, width of `result`] receives its result.
  void forward(const StepInput& input, BufferId result, float* hidden);
  // Computes the head for `rows` rows [rows, width]; `logits` has row stride `stride` >= padded width of `result`.
  void head(const float* hidden, std::int64_t rows, BufferId result, float* logits, std::int64_t stride);
  // Computes the head and keeps only each row's arg-max (the lowest id on ties) and maximum; a row that holds a NaN has
  // the maximum NaN.
  void head_argmax(const float* hidden, std::int64_t rows, BufferId result, std::int32_t* ids, float* maxima);

  // While not off, runs are timed: two looks at the clock per op and worker, a few microseconds of a step.
  void time_ops(OpClock clock) { op_clock_ = clock; }
  // Of the last `forward` or `head` that was timed: worker after worker, each with all ops in order.
  const std::vector<OpTime>& op_times() const { return op_times_; }

  std::int64_t padded_width(BufferId id) const;
  std::size_t arena_bytes() const;
  std::size_t kv_bytes() const;
  // Bytes that the largest step takes beside weights, K and V: `max_rows` tokens, the last of `context`,
  // and the logits of `head_rows`.
  std::size_t step_bytes(std::int64_t context, std::int64_t head_rows);
  int threads() const { return pool_.size(); }
  // Free between calls, for whatever the caller computes with the results.
  ThreadPool& pool() { return pool_; }

 private:
  struct Buffer;
  struct Rotation;
  struct KV;
  struct Block;
  struct View;
  struct Experts;
  struct ExpertMemory;
  void allocate_buffer(BufferId id);
  void find_crossing_buffers();
  std::int64_t block_rows(std::int64_t rows) const;
  void prepare(const std::vector<Op>& ops, const Step& step);
  void run(const std::vector<Op>& ops, Step& step, const std::function<void(int)>& finally = nullptr);
  void set_head_input(const float* hidden, std::int64_t rows);
  void run_by_ops(const std::vector<Op>& ops, Step& step, int worker);
  void run_by_blocks(const std::vector<Op>& ops, Step& step, int worker);
  void together_op(const Op& op, Step& step, int worker, std::size_t& attention_index);
  View view(BufferId id, const Block& block) const;
  std::int64_t pairs_of(const Op& op) const;
  OpTime time_of(const Op& op, int worker) const;
  OpTime* times_of(int worker, std::size_t ops);
  void row_op(const Op& op, Step& step, const Block& block);
  void rotate_tables(Step& step, std::int64_t begin, std::int64_t end);
  void matmul_op(const Op& op, const Block& block, const Share& pairs, const std::uint8_t* next);
  const std::uint8_t* weights_after(const std::vector<Op>& ops, std::size_t at, int worker, int workers) const;
  void plan_attention(const std::vector<Op>& ops, Step& step);
  std::size_t attention_bytes(std::int64_t sequences, std::int64_t rows, std::int64_t context);
  void attention_op(const Op& op, Step& step, int worker, std::size_t index);
  void attend_whole(const Op& op, Step& step, AttentionWork& work, int worker);
  void attend_in_chunks(const Op& op, Step& step, AttentionWork& work);
  AttentionItem item_of(const Op& op, const Step& step, const Tile& tile, std::int64_t chunk, std::int64_t chunks,
                        float* partials, std::int64_t partial_stride) const;
  float* output_of(const Op& op, const Step& step, const Tile& tile, std::int64_t i) const;
  void experts_op(const Op& op, Step& step, int worker);
  void route(const Experts& experts, const Buffer& scores, std::int64_t begin, std::int64_t end);
  void group_by_expert(ExpertMemory& memory, std::int64_t rows);
  void gather(ExpertMemory& memory, const Buffer& x, std::int64_t begin, std::int64_t end) const;
  void multiply(const std::vector<const std::vector<int>*>& matrices, const ExpertMemory& memory, const Buffer& x,
                const std::vector<const Buffer*>& outs, PaddedCounter& next);
  void mix(const ExpertMemory& memory, const Buffer& out, std::int64_t begin, std::int64_t end) const;
  const float* vector(int id) const;
  std::vector<Op>& building();

  const MatmulKernels& matmul_;
  const VectorKernels& vector_;
  const SamplingKernels& sampling_;  // for the softmax of a mixture's scores
  std::int64_t max_rows_;
  ThreadPool pool_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<Buffer>> block_buffers_;  // of each worker, for those that do not cross
  std::vector<std::shared_ptr<const PackedMatrix>> matrices_;
  std::vector<std::vector<float>> vectors_;
  std::vector<Rotation> rotations_;
  std::vector<KV> kv_layers_;
  std::vector<Experts> experts_;
  std::vector<Op> body_, head_;
  BufferId head_input_ = -1;
  std::vector<float> argmax_logits_;
  OpClock op_clock_ = OpClock::Off;
  std::vector<OpTime> op_times_;
};

}  // namespace sojourn
