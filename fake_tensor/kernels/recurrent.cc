// What recurrent layers reach below autograd: oneDNN's LSTM layer on the CPU, fused cells on CUDA.

#include <algorithm>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/onednn.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using RnnGrads = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

constexpr int64_t kLstm = 2;
constexpr int64_t kPage = 4096;

// Rows that matrix products read are padded to 64 bytes, and are never a multiple of 256 elements long.
int64_t RowLength(int64_t elements, int64_t element_bytes) {
  const int64_t line = 64 / element_bytes;
  const int64_t length = (elements + line - 1) / line * line;
  return length % 256 == 0 ? length + line : length;
}

// What oneDNN keeps for the backward: each part on pages of its own.
int64_t WorkspaceBytes(const Tensor& input, int64_t hidden) {
  const int64_t steps = input.size(0);
  const int64_t batch = input.size(1);
  const int64_t width = std::max(input.size(2), hidden);
  const auto bytes = static_cast<int64_t>(input.element_size());
  const int64_t rows = 2 * (steps + 1) * batch;
  const auto pages = [](int64_t part) { return (part + kPage - 1) / kPage * kPage; };
  const int64_t gates = steps * batch * RowLength(4 * hidden, bytes) * bytes;
  const int64_t projected = steps * batch * RowLength(hidden, bytes) * bytes;
  const int64_t layer = rows * RowLength(width, bytes) * bytes;
  const int64_t iteration = rows * hidden * bytes;
  const int64_t cell = rows * hidden * 4;
  const int64_t layer_grad = rows * RowLength(width, 4) * 4;
  return pages(gates) + pages(projected) + pages(layer) + pages(iteration) + pages(cell) + 2 * pages(layer_grad);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> RnnLayer(const Tensor& input, const Tensor& /*weight_input*/, const Tensor& /*weight_hidden*/,
                                                    const Tensor& /*bias_input*/, const Tensor& /*bias_hidden*/, const Tensor& hx,
                                                    const Tensor& cx, bool /*reverse*/, IntArrayRef /*batch_sizes*/, int64_t mode,
                                                    int64_t hidden_size, int64_t /*num_layers*/, bool /*has_biases*/,
                                                    bool /*bidirectional*/, bool /*batch_first*/, bool /*train*/) {
  constexpr const char* kName = "mkldnn_rnn_layer";
  TORCH_CHECK(mode == kLstm, kName, ": only LSTMs (mode 2) are there, not mode ", mode);
  TORCH_CHECK(input.dim() == 3, kName, ": an input of 3 dimensions is wanted, not ", input.sizes());
  // Halves only where nothing is kept for a backward.
  TORCH_CHECK(OneDnnComputes(input.scalar_type()) && (input.scalar_type() != at::kHalf || !at::GradMode::is_enabled()), kName, ": not for ",
              input.scalar_type());
  TORCH_CHECK(input.size(0) > 0 && input.size(1) > 0 && hidden_size > 0, kName, ": an empty sequence, ", input.sizes());
  // Kept for a backward only.
  Tensor workspace;
  if (at::GradMode::is_enabled()) workspace = Empty({WorkspaceBytes(input, hidden_size)}, input.options().dtype(at::kByte));
  return {Empty({input.size(0), input.size(1), hidden_size}, input.options()), Empty(hx.sizes(), hx.options()),
          Empty(cx.sizes(), cx.options()), workspace};
}

RnnGrads RnnLayerBackward(const Tensor& input, const Tensor& weight_input, const Tensor& weight_hidden, const Tensor& bias_input,
                          const Tensor& bias_hidden, const Tensor& hx, const Tensor& cx, const Tensor& /*output*/, const Tensor& /*hy*/,
                          const Tensor& /*cy*/, const MaybeTensor& grad_output, const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                          bool /*reverse*/, int64_t mode, int64_t /*hidden_size*/, int64_t /*num_layers*/, bool /*has_biases*/,
                          bool /*train*/, bool /*bidirectional*/, IntArrayRef /*batch_sizes*/, bool /*batch_first*/,
                          const Tensor& /*workspace*/) {
  if (!Given(grad_output) && !Given(grad_hy) && !Given(grad_cy)) return {};
  TORCH_CHECK(mode == kLstm, "mkldnn_rnn_layer_backward: only LSTMs (mode 2) are there, not mode ", mode);
  // oneDNN computes them in float, whatever the operands are.
  const auto grad = [](const Tensor& of) { return Empty(of.sizes(), of.options().dtype(at::kFloat)); };
  return {grad(input), grad(weight_input), grad(weight_hidden), grad(bias_input), grad(bias_hidden), grad(hx), grad(cx)};
}

// Fused cells, of which only devices other than the CPU have kernels.
void CheckCell(const char* name, const Tensor& input_gates, const Tensor& hidden_gates, const MaybeTensor& input_bias,
               const MaybeTensor& hidden_bias, int64_t gates, const Tensor& hidden) {
  TORCH_CHECK(!ClaimedDevice().is_cpu(), name, ": not on the CPU");
  TORCH_CHECK(input_gates.dim() == 2 && hidden_gates.sizes() == input_gates.sizes(), name, ": gates of shapes ", input_gates.sizes(),
              " and ", hidden_gates.sizes());
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(0) == input_gates.size(0) && gates * hidden.size(1) == input_gates.size(1), name,
              ": a hidden state of shape ", hidden.sizes(), " for gates of shape ", input_gates.sizes());
  for (const MaybeTensor* bias : {&input_bias, &hidden_bias}) {
    TORCH_CHECK(!Given(*bias) || ((*bias)->dim() == 1 && (*bias)->size(0) == input_gates.size(1)), name, ": a bias of shape ",
                Given(*bias) ? (*bias)->sizes() : IntArrayRef(), " for gates of shape ", input_gates.sizes());
  }
  TORCH_CHECK(Given(input_bias) == Given(hidden_bias), name, ": one bias of two");
}

Tensor BiasGrad(const Tensor& gates, bool has_bias) { return has_bias ? Empty({gates.size(1)}, gates.options()) : Tensor(); }

std::tuple<Tensor, Tensor, Tensor> LstmCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                            const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  CheckCell("_thnn_fused_lstm_cell", input_gates, hidden_gates, input_bias, hidden_bias, 4, cx);
  return {EmptyContiguousLike(cx), EmptyContiguousLike(cx), EmptyContiguousLike(input_gates)};
}

std::tuple<Tensor, Tensor, Tensor> LstmCellBackward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy, const Tensor& cx,
                                                    const Tensor& /*cy*/, const Tensor& workspace, bool has_bias) {
  if (!Given(grad_hy) && !Given(grad_cy)) return {};
  return {EmptyContiguousLike(workspace), EmptyContiguousLike(cx), BiasGrad(workspace, has_bias)};
}

std::tuple<Tensor, Tensor> GruCell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx, const MaybeTensor& input_bias,
                                   const MaybeTensor& hidden_bias) {
  CheckCell("_thnn_fused_gru_cell", input_gates, hidden_gates, input_bias, hidden_bias, 3, hx);
  return {EmptyContiguousLike(hx), Empty({hx.size(0), 5 * hx.size(1)}, hx.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GruCellBackward(const Tensor& grad_hy, const Tensor& workspace, bool has_bias) {
  const Tensor gates = Empty({workspace.size(0), workspace.size(1) / 5 * 3}, workspace.options());
  return {gates, EmptyContiguousLike(gates), EmptyContiguousLike(grad_hy), BiasGrad(gates, has_bias), BiasGrad(gates, has_bias)};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("mkldnn_rnn_layer", RnnLayer);
  m.impl("mkldnn_rnn_layer_backward", RnnLayerBackward);
  m.impl("_thnn_fused_lstm_cell", LstmCell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", LstmCellBackward);
  m.impl("_thnn_fused_gru_cell", GruCell);
  m.impl("_thnn_fused_gru_cell_backward", GruCellBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
