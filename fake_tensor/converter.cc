#include "fake_tensor/converter.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/_conj.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/clone.h"
#include "ATen/ops/view_as_complex.h"
#include "ATen/ops/view_as_real.h"
#include "base/dispatch_keys.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/op_info.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/csrc/autograd/variable.h"

namespace ddpopt {
namespace {

bool Agree(const at::Tensor& fake, const at::Tensor& real) {
  return fake.sizes() == real.sizes() && fake.strides() == real.strides() && fake.storage_offset() == real.storage_offset() &&
         fake.dtype() == real.dtype() && fake.device() == real.device() && fake.requires_grad() == real.requires_grad() &&
         fake.is_leaf() == real.is_leaf() && fake.is_conj() == real.is_conj() && fake.is_neg() == real.is_neg();
}

// The tensor that `real` is a view of, if a fake of it can be made as a view too.
at::Tensor ViewedBase(const at::Tensor& real) {
  if (real.is_inference() || !real.is_view()) return at::Tensor();
  const at::Tensor base(real._base());
  if (base.device() != real.device() || base.is_inference() || !base.has_storage() ||
      base.storage().unsafeGetStorageImpl() != real.storage().unsafeGetStorageImpl()) {
    return at::Tensor();
  }
  return base;
}

// A view of `base` with the geometry of `real`, through views that autograd knows: of parts of complex numbers, the conjugate, the
// negative. Undefined if there is none.
at::Tensor ViewLike(const at::Tensor& base, const at::Tensor& real) {
  at::Tensor view = base;
  if (base.is_complex() && real.scalar_type() == c10::toRealValueType(base.scalar_type())) {
    view = at::view_as_real(base.is_conj() ? at::_conj(base) : base);
  } else if (real.is_complex() && base.scalar_type() == c10::toRealValueType(real.scalar_type())) {
    if (base.is_neg()) view = at::_neg_view(base);
    view = at::view_as_complex(view.as_strided({static_cast<int64_t>(base.storage().nbytes() / real.itemsize()), 2}, {2, 1}, 0));
  }
  if (view.scalar_type() != real.scalar_type()) return at::Tensor();
  if (view.is_conj() != real.is_conj()) view = at::_conj(view);
  if (view.is_neg() != real.is_neg()) view = at::_neg_view(view);
  return view.as_strided(real.sizes(), real.strides(), real.storage_offset());
}

}  // namespace

void Converter::Sweep() {
  if (tensors_.size() + storages_.size() < sweep_at_) return;
  absl::erase_if(tensors_, [](const auto& entry) { return entry.second.real.expired() || entry.second.fake.expired(); });
  absl::erase_if(storages_, [](const auto& entry) { return entry.second.real.expired() || entry.second.fake.expired(); });
  sweep_at_ = std::max<std::size_t>(256, 2 * (tensors_.size() + storages_.size()));
}

c10::Storage Converter::StorageOf(const at::Tensor& real) {
  const c10::StorageImpl* key = real.storage().unsafeGetStorageImpl();
  if (const auto found = storages_.find(key); found != storages_.end()) {
    auto fake = found->second.fake.lock();
    // Either may have been resized.
    if (fake.defined() && fake->nbytes() == real.storage().nbytes()) return c10::Storage(std::move(fake));
    storages_.erase(found);
  }
  c10::Storage fake = FakeStorageImpl::OfSize(real.storage().nbytes(), real.device());
  if (!real.storage().resizable()) fake.unsafeGetStorageImpl()->set_resizable(false);
  storages_.emplace(key, StorageEntry{real.storage().getWeakStorageImpl(), fake.getWeakStorageImpl()});
  return fake;
}

bool Converter::StoragesAgree(const at::Tensor& fake, const at::Tensor& real) const {
  const auto found = storages_.find(real.storage().unsafeGetStorageImpl());
  return found != storages_.end() && found->second.fake._unsafe_get_target() == fake.storage().unsafeGetStorageImpl() &&
         fake.storage().nbytes() == real.storage().nbytes();
}

at::Tensor Converter::Fresh(FakeTensorMode& mode, const at::Tensor& real) {
  c10::InferenceMode inference(real.is_inference());
  auto impl = c10::make_intrusive<FakeTensorImpl>(FakeStorageImpl::OfSize(real.storage().nbytes(), real.device()), real.device(),
                                                  real.dtype(), mode.shared_from_this());
  impl->CopyGeometry(*real.unsafeGetTensorImpl());
  return at::Tensor(std::move(impl));
}

at::Tensor Converter::Make(FakeTensorMode& mode, const at::Tensor& real) {
  // Nobody else is to see the operators that this takes.
  DisableModesGuard no_pre_modes(Mode::Level::kPreAutograd);
  DisableModesGuard no_post_modes(Mode::Level::kPostAutograd);
  // Made outside inference mode if the real one was, so that it has the keys autograd needs.
  c10::InferenceMode inference(real.is_inference());
  at::Tensor fake;
  if (const at::Tensor base = ViewedBase(real); base.defined()) {
    // Versions and gradients go through the base as on real views.
    const at::Tensor fake_base = FromReal(mode, base);
    c10::AutoGradMode grad(!base.requires_grad() || real.requires_grad());
    if (fake_base.storage().nbytes() == real.storage().nbytes()) fake = ViewLike(fake_base, real);
    // Writes to some views are refused for the way in which these were made.
    const auto* from = torch::autograd::impl::get_view_autograd_meta(real);
    auto* to = fake.defined() ? torch::autograd::impl::get_view_autograd_meta(fake) : nullptr;
    if (from != nullptr && from->has_bw_view() && to != nullptr && to->has_bw_view()) to->set_creation_meta(from->get_creation_meta());
  }
  if (!fake.defined()) {
    auto impl = c10::make_intrusive<FakeTensorImpl>(StorageOf(real), real.device(), real.dtype(), mode.shared_from_this());
    impl->CopyGeometry(*real.unsafeGetTensorImpl());
    fake = at::Tensor(std::move(impl));
  }
  if (!real.requires_grad()) return fake.requires_grad() ? fake.detach() : fake;
  if (fake.requires_grad() && fake.is_leaf() == real.is_leaf()) return fake;
  if (real.is_leaf()) {
    if (fake.requires_grad()) fake = fake.detach();
    fake.requires_grad_();
  } else {
    // Some history of its own: that of a copy of a leaf nobody sees.
    c10::AutoGradMode grad(true);
    const at::Tensor copy = at::clone(Fresh(mode, real).requires_grad_());
    torch::autograd::impl::set_gradient_edge(fake, torch::autograd::impl::gradient_edge(copy));
  }
  return fake;
}

at::Tensor Converter::FromReal(FakeTensorMode& mode, const at::Tensor& real) {
  if (!real.defined()) return real;
  if (const FakeTensorImpl* fake = FakeTensorImpl::Of(real)) {
    if (fake->mode().get() == &mode) return real;
    fake_errors_internal::Throw<NotOurFake>("FakeTensorMode::FromReal: the tensor (", Describe(real),
                                            ") is a fake tensor of another mode, ", fake->mode()->Description(), "; this one is ",
                                            mode.Description());
  }
  TORCH_CHECK(!real.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey),
              "FakeTensorMode::FromReal: the real tensor was given a fake tensor's data (set_data)");
  TORCH_CHECK(real.layout() == c10::kStrided && real.has_storage() && !real.is_quantized() && !real.is_nested() &&
                  !real.unsafeGetTensorImpl()->has_symbolic_sizes_strides(),
              "FakeTensorMode::FromReal: only dense tensors with strides can be made fake, not layout ", real.layout(), " of dtype ",
              c10::toString(real.scalar_type()));

  Sweep();
  const c10::TensorImpl* key = real.unsafeGetTensorImpl();
  if (const auto found = tensors_.find(key); found != tensors_.end()) {
    auto known = found->second.fake.lock();
    // Real tensors may change under their fakes (resize_, set_, set_data, requires_grad_), and fakes too; then a new fake is made.
    if (known.defined()) {
      at::Tensor fake(std::move(known));
      if (Agree(fake, real) && StoragesAgree(fake, real)) return fake;
    }
    tensors_.erase(key);
  }
  // First, since it may be refused: a fake of another mode.
  const at::Tensor grad = real.is_leaf() ? FromReal(mode, real.grad()) : at::Tensor();
  at::Tensor fake = Make(mode, real);
  tensors_.insert_or_assign(key, TensorEntry{c10::weak_intrusive_ptr<c10::TensorImpl>(real.getIntrusivePtr()),
                                             c10::weak_intrusive_ptr<c10::TensorImpl>(fake.getIntrusivePtr())});
  if (grad.defined()) fake.mutable_grad() = grad;
  return fake;
}

}  // namespace ddpopt
