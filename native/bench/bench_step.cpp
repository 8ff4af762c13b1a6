// Where the time of a step goes, op by op: the executor with the shapes of SmolLM2-135M (Q4_1, head Q8_0) and random
// weights, beside ceilings measured in the same run.
//
//   bench_step [--isa NAME] [--threads N] [--prefill 512] [--rows 1,8,16] [--context 300] [--repeats 40]
//              [--clock wall|processor]
//
// `prefill`: one step that computes a prompt of so many tokens. `rows`: steps of so many sequences, one token each, all of
// `context` tokens. A line sums one kind of op over a step. `best` takes each op's fastest run of all repeats, so that on a
// busy host it is what the op costs undisturbed; `median` and `waiting` (for the other workers) are of whole steps.
// Times are means over the workers. On a busy host `--threads 1 --clock processor` leaves out what others take.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shared.h"
#include "sojourn/executor.h"
#include "sojourn/matmul.h"

namespace {

using namespace sojourn;

constexpr std::int64_t kHidden = 576, kHeads = 9, kKVHeads = 3, kHeadDim = 64, kIntermediate = 1536, kVocab = 49152;
constexpr int kLayers = 30;
constexpr std::int64_t kBlock = 32;

struct Options {
  Isa isa = best_isa();
  int threads = 2, repeats = 40;
  OpClock clock = OpClock::Wall;
  std::int64_t context = 300;
  std::vector<std::int64_t> prefill = {512}, rows = {1, 8, 16};
};

// SmolLM2's ops, as executor/lowering.py builds them.
struct Model {
  Executor executor;
  std::vector<std::uint8_t> head_blocks;  // also the embeddings
  BufferId x, hidden, selected, logits;

  Model(const Options& options, std::int64_t max_rows, std::int64_t num_blocks)
      : executor(options.isa, options.threads, max_rows) {
    const FormatInfo& q4 = *find_format("Q4_1");
    const FormatInfo& q8 = *find_format("Q8_0");
    head_blocks = random_blocks(q8, kVocab * kHidden);
    const auto matrix = [&](const FormatInfo& info, std::int64_t n, std::int64_t k) {
      const std::vector<std::uint8_t> blocks = random_blocks(info, n * k);
      return executor.add_matrix(pack(info.format, blocks.data(), n, k, options.threads));
    };
    const std::vector<float> ones(kHidden, 1.0f);
    const auto norm = [&](BufferId in, BufferId out) {
      executor.rms_norm(in, out, executor.add_vector(ones.data(), kHidden), kHidden, 1e-5f, 0.0f);
    };
    std::vector<double> frequencies(kHeadDim / 2, 0.01);
    const int rotation = executor.add_rotation(frequencies.data(), kHeadDim / 2, 1.0f);
    x = executor.add_buffer(kHidden);
    BufferId other = executor.add_buffer(kHidden);
    const BufferId normed = executor.add_buffer(kHidden), q = executor.add_buffer(kHidden);
    const BufferId k = executor.add_buffer(kKVHeads * kHeadDim), v = executor.add_buffer(kKVHeads * kHeadDim);
    const BufferId gate = executor.add_buffer(kIntermediate), up = executor.add_buffer(kIntermediate);
    const BufferId attended = executor.add_buffer(kHidden);
    executor.embed(x, {&q8, head_blocks.data(), kVocab, kHidden}, 1.0f);
    for (int layer = 0; layer < kLayers; ++layer) {
      norm(x, normed);
      executor.quantize(normed);
      executor.matmul(normed, {matrix(q4, kHidden, kHidden), matrix(q4, kKVHeads * kHeadDim, kHidden),
                               matrix(q4, kKVHeads * kHeadDim, kHidden)}, {q, k, v}, {-1, -1, -1}, -1);
      executor.rope(q, kHeadDim, rotation);
      executor.rope(k, kHeadDim, rotation);
      executor.attention(q, k, v, attended, executor.add_kv_layer(
          {kHeads, kKVHeads, kHeadDim, kBlock, 0.125f, 0, 0.0f, KVType::F16}, num_blocks));
      executor.quantize(attended);
      executor.matmul(attended, {matrix(q4, kHidden, kHidden)}, {other}, {-1}, x);
      norm(other, normed);
      executor.quantize(normed);
      executor.matmul(normed, {matrix(q4, kIntermediate, kHidden), matrix(q4, kIntermediate, kHidden)}, {gate, up},
                      {-1, -1}, -1);
      executor.glu(gate, up, gate, Activation::Silu);
      executor.quantize(gate);
      executor.matmul(gate, {matrix(q4, kHidden, kIntermediate)}, {x}, {-1}, other);
    }
    selected = executor.add_buffer(kHidden), hidden = x;
    executor.begin_head(selected);
    const BufferId last = executor.add_buffer(kHidden);
    norm(selected, last);
    executor.quantize(last);
    logits = executor.add_buffer(kVocab);
    executor.matmul(last, {matrix(q8, kVocab, kHidden)}, {logits}, {-1}, -1);
  }
};

// A step of `sequences` sequences that each have `past` tokens and get `tokens` more.
struct Plan {
  std::vector<std::int32_t> ids, positions, ends{0}, tables;
  std::int64_t sequences, width;

  Plan(std::int64_t count, std::int64_t past, std::int64_t tokens)
      : sequences(count), width((past + tokens + kBlock - 1) / kBlock) {
    for (std::int64_t s = 0; s < count; ++s) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        ids.push_back(static_cast<std::int32_t>((s * 977 + t * 31) % kVocab));
        positions.push_back(static_cast<std::int32_t>(past + t));
      }
      ends.push_back(static_cast<std::int32_t>(ids.size()));
      for (std::int64_t b = 0; b < width; ++b) tables.push_back(static_cast<std::int32_t>(s * width + b));
    }
  }
  StepInput input() const {
    StepInput step;
    step.tokens = static_cast<std::int64_t>(ids.size()), step.sequences = sequences, step.table_width = width;
    step.token_ids = ids.data(), step.positions = positions.data();
    step.cu_seqlens = ends.data(), step.block_tables = tables.data();
    return step;
  }
};

struct Line {
  int calls = 0;
  double best = 0;                      // sum over ops of their fastest run, mean over the workers
  std::vector<double> works, waits;     // one entry per repeat
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string name_of(const OpTime& time) {
  std::string name = time.kind;
  if (time.k > 0) name += " " + std::to_string(time.columns) + "x" + std::to_string(time.k);
  return name;
}

// Of each op, the mean of the workers: where they share a queue, which of them took how much is chance.
void append_means(const std::vector<OpTime>& all, int workers, std::vector<OpTime>& means) {
  const std::size_t ops = all.size() / static_cast<std::size_t>(workers);
  for (std::size_t i = 0; i < ops; ++i) {
    OpTime mean = all[i];
    for (std::size_t at = i + ops; at < all.size(); at += ops) mean.work += all[at].work, mean.wait += all[at].wait;
    mean.work /= workers, mean.wait /= workers;
    means.push_back(mean);
  }
}

void measure_step(Model& model, const Plan& plan, std::int64_t head_rows, const Options& options) {
  const auto tokens = static_cast<std::int64_t>(plan.ids.size());
  std::vector<float> hidden(static_cast<std::size_t>(tokens * kHidden), 0.5f), maxima(static_cast<std::size_t>(tokens));
  std::vector<std::int32_t> best_ids(static_cast<std::size_t>(tokens));
  std::vector<double> steps, fastest;
  std::map<std::string, Line> lines;
  std::vector<std::string> order;
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first only warms up
    const auto start = Clock::now();
    model.executor.forward(plan.input(), model.hidden, hidden.data());
    std::vector<OpTime> times;
    append_means(model.executor.op_times(), options.threads, times);
    model.executor.head_argmax(hidden.data(), head_rows, model.logits, best_ids.data(), maxima.data());
    const double seconds = seconds_since(start);
    if (repeat < 0) continue;
    append_means(model.executor.op_times(), options.threads, times);
    steps.push_back(seconds);
    if (fastest.empty()) fastest.assign(times.size(), 1e9);
    for (auto& entry : lines) entry.second.works.push_back(0), entry.second.waits.push_back(0);
    for (std::size_t i = 0; i < times.size(); ++i) {
      fastest[i] = std::min(fastest[i], times[i].work);
      const auto found = lines.try_emplace(name_of(times[i]));
      Line& line = found.first->second;
      if (found.second) order.push_back(found.first->first), line.works = line.waits = {0.0};
      line.works.back() += times[i].work, line.waits.back() += times[i].wait;
      if (repeat == options.repeats - 1) line.best += fastest[i], ++line.calls;
    }
  }
  std::printf("| op | calls | best, us | share | median, us | waiting before it, us |\n|---|---|---|---|---|---|\n");
  double total = 0, works = 0, waits = 0;
  for (const auto& entry : lines)
    total += entry.second.best, works += median(entry.second.works), waits += median(entry.second.waits);
  for (const std::string& name : order) {
    const Line& line = lines[name];
    std::printf("| %s | %d | %.1f | %.1f%% | %.1f | %.1f |\n", name.c_str(), line.calls, line.best * 1e6,
                100 * line.best / total, median(line.works) * 1e6, median(line.waits) * 1e6);
  }
  const double least = *std::min_element(steps.begin(), steps.end());
  std::printf("| sum | | %.1f | | %.1f | %.1f |\n\nwhole step: fastest %.1f us, median %.1f us: %.0f and %.0f tokens/s\n\n",
              total * 1e6, works * 1e6, waits * 1e6, least * 1e6, median(steps) * 1e6,
              static_cast<double>(tokens) / least, static_cast<double>(tokens) / median(steps));
}

std::vector<std::int64_t> numbers(const std::string& list) {
  std::vector<std::int64_t> values;
  for (const std::string& item : split(list)) values.push_back(std::atoll(item.c_str()));
  return values;
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i], value = arguments[i + 1];
    if (name == "--threads") options.threads = std::max(1, std::atoi(value.c_str()));
    if (name == "--repeats") options.repeats = std::max(1, std::atoi(value.c_str()));
    if (name == "--context") options.context = std::atoll(value.c_str());
    if (name == "--prefill") options.prefill = numbers(value);
    if (name == "--rows") options.rows = numbers(value);
    if (name == "--clock" && value == "processor") options.clock = OpClock::Processor;
    if (name == "--isa")
      for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512Vnni})
        if (isa_name(isa) == value && has_isa(isa)) options.isa = isa;
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  {
    Team team(options.threads);
    std::printf("%s, %d threads: read bandwidth %.1f GB/s, VPDPBUSD %.0f GOPS, FMA %.0f GFLOP/s\n\n",
                std::string(isa_name(options.isa)).c_str(), options.threads, read_bandwidth(team), peak_gops(team),
                peak_gflops(team, options.isa));
  }
  std::int64_t most_rows = 1, blocks = 1;
  std::vector<Plan> plans;
  for (const std::int64_t tokens : options.prefill) plans.emplace_back(1, 0, tokens);
  for (const std::int64_t rows : options.rows) plans.emplace_back(rows, options.context, 1);
  for (const Plan& plan : plans) {
    most_rows = std::max(most_rows, static_cast<std::int64_t>(plan.ids.size()));
    blocks = std::max(blocks, plan.sequences * plan.width);
  }
  Model model(options, most_rows, blocks);
  model.executor.time_ops(options.clock);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool prefill = i < options.prefill.size();
    std::printf("%s, %zu tokens\n\n", prefill ? "prefill" : "decode", plans[i].ids.size());
    measure_step(model, plans[i], prefill ? 1 : plans[i].sequences, options);
  }
}
