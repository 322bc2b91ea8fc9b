// What autograd saves for the backward, operator by operator.
#include <charconv>
#include <unordered_map>

#include "tools/estimate/operators.h"
#include "tools/foreign/text.h"

namespace vramledger {
namespace {

struct Row {
  const char* saved;
  const char* operators;  // aten names
};

// i0, i1 ...: the arguments of tensor type in the order of the schema; o0, o1 ...: what the schema returns, in its
// order; ?1,2: only where argument 1 or 2 requires grad. An operator is given without overload where all overloads
// save the same, and in place where that saves something else. Operators whose results are whole numbers or truth
// values have no derivative and need no row.
constexpr Row kRows[] = {
    {"",
     "_fft_c2c _fft_c2r _to_copy _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa "
     "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d add "
     "affine_grid_generator alias arange as_strided as_strided_scatter bernoulli bernoulli_ block_diag cat "
     "ceil channel_shuffle chunk clone col2im constant_pad_nd copy cudnn_affine_grid_generator cumsum "
     "deg2rad detach diag_embed diagonal diagonal_scatter div.Scalar div.Scalar_mode empty empty_like "
     "empty_permuted empty_strided expand exponential fill flip floor fmod.Scalar frac full full_like "
     "im2col lerp.Scalar lift lift_fresh linspace mean mul.Scalar multinomial neg new_empty "
     "new_empty_strided new_full new_ones new_zeros normal ones ones_like permute pixel_shuffle "
     "pixel_unshuffle poisson rad2deg rand rand_like randint randint_like randn randn_like random randperm "
     "remainder.Scalar repeat resize roll rot90 round rsub scalar_tensor select select_scatter set sign "
     "slice slice_scatter split split_with_sizes squeeze stack sub sum t trace transpose tril triu trunc "
     "unbind unfold uniform unsafe_split unsafe_split_with_sizes unsqueeze upsample_bicubic2d "
     "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
     "upsample_trilinear3d view view_as_complex view_as_real zero zeros zeros_like"},
    {"i0",
     "_adaptive_avg_pool2d _adaptive_avg_pool3d _fft_r2c _to_dense abs acos acosh angle asin asinh atan "
     "atanh avg_pool2d avg_pool3d celu clamp clamp_max clamp_min cos cosh digamma elu erf erfc erfinv gelu "
     "glu hardshrink hardsigmoid hardswish hardtanh i0 leaky_relu lgamma linalg_matrix_exp log log10 log1p "
     "log2 logit max_pool2d mish mvlgamma nan_to_num nansum polygamma pow.Tensor_Scalar reflection_pad1d "
     "reflection_pad2d reflection_pad3d renorm replication_pad1d replication_pad2d replication_pad3d silu "
     "sin sinc sinh softplus softshrink special_entr threshold to_padded_tensor var var_mean where "
     "special_xlog1py.other_scalar special_xlog1py.self_scalar "
     "xlogy.Scalar_Other xlogy.Scalar_Self"},
    {"i1",
     "_unsafe_index _unsafe_index_put embedding index index_fill index_put index_select masked_fill "
     "masked_scatter max_unpool2d max_unpool3d scatter"},
    {"o0",
     "_log_softmax _safe_softmax celu_ elu_ leaky_relu_ _softmax exp exp2 expm1 linalg_inv_ex polar reciprocal relu "
     "rsqrt sigmoid "
     "sqrt tan tanh"},
    {"o1",
     "_fused_dropout _pack_padded_sequence frexp kthvalue max.dim median.dim min.dim mode nanmedian.dim "
     "native_dropout sort topk"},
    {"i1?2", "scatter_add"},
    {"i0 i1",
     "_conv_depthwise2d _prelu_kernel atan2 clamp_max.Tensor clamp_min.Tensor conv_depthwise3d convolution "
     "cudnn_convolution cudnn_convolution_transpose cudnn_grid_sampler fmax fmin gather grid_sampler_2d "
     "grid_sampler_3d huber_loss logaddexp logaddexp2 masked_select maximum minimum mse_loss "
     "rrelu_with_noise smooth_l1_loss soft_margin_loss special_xlog1py take xlogy.Tensor"},
    {"i0 o0",
     "_standard_gamma amax amin copysign.Scalar cumprod linalg_vector_norm logcumsumexp logsumexp max "
     "median min nanmedian norm pow.Scalar prod sgn special_erfcx special_i0e special_i1 special_log_ndtr "
     "std std_mean"},
    {"i0 o1",
     "adaptive_max_pool2d adaptive_max_pool3d cummax cummin fractional_max_pool2d fractional_max_pool3d "
     "log_sigmoid_forward max_pool2d_with_indices max_pool3d_with_indices"},
    {"i1 o0", "_masked_softmax rrelu_with_noise_"},
    {"o0 o1", "_cudnn_ctc_loss"},
    {"i0?1 i1", "div.Tensor div.Tensor_mode"},
    {"i1 i2?2", "put"},
    {"i1?2 i2", "addcdiv"},
    {"i0 i1 i2", "binary_cross_entropy clamp.Tensor conv_tbc multi_margin_loss"},
    {"i0 i1 o0", "_cdist_forward dist"},
    {"i0 i1 o1", "_fused_rms_norm _weight_norm_interface multilabel_margin_loss_forward"},
    {"i0?0 i1?1", "complex"},
    {"i0?0 o0?0", "copysign.Tensor"},
    {"i0?1 i1?0", "bmm dot linalg_cross mm mul.Tensor mv vdot"},
    {"i0?1 i1?1", "fmod.Tensor igamma igammac remainder.Tensor"},
    {"i1?0 o0?1", "ldexp"},
    {"i1?2 i2?1", "addbmm addcmul addmm addmv addr baddbmm"},
    {"i1?2 i2?2", "index_add"},
    {"i0 i1 o0?1", "pow.Tensor_Tensor"},
    {"i0 i1 i2 i3", "binary_cross_entropy_with_logits"},
    {"i0 i1 i2 o0", "index_reduce scatter_reduce"},
    {"i0 i1 i2 o1", "nll_loss2d_forward nll_loss_forward"},
    {"i0 i1 o0 o1", "_ctc_loss"},
    {"i0 i1 o1 o2", "_native_batch_norm_legit.no_stats native_group_norm"},
    {"i0?0 i1?1 o0", "hypot"},
    {"i0?1 i1?0 i2", "_grouped_mm"},
    {"i0?2 i1?2 i2", "lerp.Tensor"},
    {"i0 i1 i2 o1 o2", "native_layer_norm"},
    {"i0 i1 i2 i3 i4 o1", "_thnn_fused_gru_cell"},
    {"i0 i1 i2 i3 o0 o1", "_ctc_loss.Tensor _scaled_dot_product_flash_attention_for_cpu"},
    {"i0 i1 i3 i4 o1 o2", "_native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm"},
    {"i0 i1 i2 i3 i4 o1 o2", "_thnn_fused_lstm_cell"},
    {"i0 i1 i3 i4 o1 o2 o3", "_batch_norm_no_update _batch_norm_with_update cudnn_batch_norm"},
    {"i0?1,2 i1?0,2 i2?0,1", "_trilinear"},
    {"i0 i1 i2 i3 o0 o1 o2 o3", "_scaled_dot_product_efficient_attention"},
    {"i0 i1 i3 i4 i5 o0 o3 o4", "_cudnn_rnn"},
    {"i0 i1 i2 i3 i4 o0 o1 o2 o3", "_flash_attention_forward"},
    {"i0 i1 i2 o0 o1 o2 o3 o6 o7", "_scaled_dot_product_flash_attention"},
    {"i0?3 i1 i2 i3 o1 o2?0 o3?0", "_embedding_bag"},
    {"i0 i1 i2 i3 i4 i5 o0 o1 o2 o3", "_efficient_attention_forward"},
    {"i0 i1 i2 i3 i4 i5 o0 o1 o6 o7", "_cudnn_attention_forward"},
    {"i0 i1 i2 i3 o0 o1 o2 o3 o6 o7", "_scaled_dot_product_cudnn_attention"},
};

std::vector<SavedTensorRule> Parse(std::string_view saved) {
  std::vector<SavedTensorRule> rules;
  for (const std::string_view token : Split(saved, ' ', true)) {
    SavedTensorRule rule;
    rule.output = token[0] == 'o';
    const size_t question = token.find('?');
    ParseInteger(token.substr(1, question == std::string_view::npos ? question : question - 1), &rule.index);
    if (question != std::string_view::npos) {
      for (const std::string_view number : Split(token.substr(question + 1), ','))
        ParseInteger(number, &rule.needed_for.emplace_back());
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

using Table = std::unordered_map<std::string, std::vector<SavedTensorRule>>;

const Table& SavedTable() {
  static const Table* const table = [] {
    auto* t = new Table;
    for (const Row& row : kRows) {
      const std::vector<SavedTensorRule> rules = Parse(row.saved);
      for (const std::string_view name : Split(row.operators, ' ', true)) t->emplace(name, rules);
    }
    return t;
  }();
  return *table;
}

const std::vector<SavedTensorRule>* Find(const std::string& name) {
  const auto it = SavedTable().find(name);
  return it == SavedTable().end() ? nullptr : &it->second;
}

}  // namespace

const std::vector<SavedTensorRule>* FindSavedTensorRules(std::string_view name) {
  constexpr std::string_view kNamespace = "aten::";
  if (!name.starts_with(kNamespace)) return nullptr;
  name.remove_prefix(kNamespace.size());
  const size_t dot = name.find('.');
  std::string base(name.substr(0, dot));
  const std::string overload = dot == std::string_view::npos ? ".Tensor" : std::string(name.substr(dot));
  while (true) {
    if (const auto* rules = Find(base + overload)) return rules;
    if (const auto* rules = Find(base)) return rules;
    if (base.size() < 2 || base.back() != '_') return nullptr;
    base.pop_back();  // in place
  }
}

}  // namespace vramledger
