#include "fake_tensor/cross_ref/recipe.h"

#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace ddpopt::cross_ref {
namespace {

// One recipe a line: names, comma separated, then its items. A line that begins with a space goes on with the one before.
constexpr char kTable[] = R"(
# Matrices
mm  self=[M,K] mat2=[K,N]
bmm  self=[B,M,K] mat2=[B,K,N]
_int_mm  self=i8[M,K] mat2=i8[K,N]
addmm,_addmm_activation  self=[M,N]|[M,N]|[N]|[M?,N?]|[] mat1=[M,K] mat2=[K,N]
addmv  self=[M]|[M]|[1]|[] mat=[M,K] vec=[K]
addr  self=[M,N]|[M,N]|[N]|[M?,N?] vec1=[M] vec2=[N]
baddbmm  self=[B,M,N]|[B,M,N]|[M,N]|[B?,M?,N?]|[N] batch1=[B,M,K] batch2=[B,K,N]
addbmm  self=[M,N]|[M,N]|[N]|[M?,N?] batch1=[B,M,K] batch2=[B,K,N]
mv  self=[M,K] vec=[K]
dot,vdot  self=[N] tensor=[N] other=[N]
linear  input=[*P,I] weight=[O,I] bias=none|[O]
_foreach_mm  self=each([M,K]) mat2=each([K,N])
_euclidean_dist  T=float x1=[*P,M,D] x2=[*P,N,D]
_cdist_forward  T=float x1=[*P,M,D] x2=[*P,N,D] p=0.0|1.0|2.0|3.5 compute_mode=none|0|1|2
_cdist_backward  T=float grad=[*P,M,N] grad_output=[*P,M,N] x1=[*P,M,D] x2=[*P,N,D] p=1.0|2.0|3.5 cdist=[*P,M,N] !unchecked
_pdist_forward  T=float self=[N,M] p=1.0|2.0|3.5 !nonempty
_pdist_backward  T=float grad_output=[N*(N-1)/2] self=[N,M] p=1.0|2.0|3.5 pdist=[N*(N-1)/2] !unchecked !nonempty
linalg_cross  self=[*P,3,*P1] other=[*P,3,*P1] dim=rank(*P)
_trilinear  i1=[A,B] i2=[A,B] i3=[A,B] expand1=() expand2=() expand3=() sumdim=()|(0)|(1) unroll_dim=0|1
trace  self=[M,N]
tril,triu  self=[*P,M,N] diagonal=-2..2 !outs
tril_indices,triu_indices  row=0..4 col=0..4 offset=-2..2

# Linear algebra
linalg_cholesky_ex  T=fc self=[*P,N,N]@pd check_errors=false
cholesky_inverse  T=fc self=[*P,N,N]@pd
cholesky_solve  T=fc self=[*P,N,K] input2=[*P,N,N]@pd
_cholesky_solve_helper  T=fc self=[*P,N,K] A=[*P,N,N]@pd !unchecked
linalg_inv_ex,_linalg_det,_linalg_slogdet,linalg_matrix_exp,_linalg_eigvals,linalg_eigvals,linalg_eig  T=fc A=[*P,N,N]@pd self=[*P,N,N]@pd
    check_errors=false
_linalg_eigh  T=fc A=[*P,N,N]@pd UPLO='L'|'U'|'l'|'u'
_linalg_solve_ex  T=fc A=[*P,N,N]@pd B=[*P,N,K] left=true check_errors=false
_linalg_solve_ex  T=fc A=[*P,N,N]@pd B=[*P,K,N] left=false check_errors=false
_linalg_svd  T=fc A=[*P,M,N] driver=none
linalg_lu,linalg_lu_factor_ex  T=fc A=[*P,M,N]@pd pivot=true check_errors=false !outs
linalg_lu_solve  T=fc LU=[*P,N,N]@pd pivots=i32[*P,N]=1 B=[*P,N,K] left=true !unchecked !contiguous
linalg_lu_solve  T=fc LU=[*P,N,N]@pd pivots=i32[*P,N]=1 B=[*P,K,N] left=false !unchecked !contiguous
lu_unpack  T=fc LU_data=[*P,N,N]@pd LU_pivots=i32[*P,N]=1 !outs
linalg_ldl_factor_ex  T=fc self=[*P,N,N]@pd check_errors=false
linalg_ldl_solve  T=fc LD=[*P,N,N]@pd pivots=i32[*P,N]=1 B=[*P,N,K] !unchecked !contiguous
linalg_qr  T=fc A=[*P,M,N]@pd mode='reduced'|'complete'|'r'
linalg_householder_product  T=fc input=[*P,M+N,N] tau=[*P,N]
geqrf  T=fc self=[*P,M,N]
ormqr  T=fc self=[*P,M+N,N] input2=[*P,N] input3=[*P,M+N,K] left=true
linalg_solve_triangular  T=fc self=[*P,N,N]@pd B=[*P,N,K] left=true
linalg_solve_triangular  T=fc self=[*P,N,N]@pd B=[*P,K,N] left=false
triangular_solve  T=fc self=[*P,N,K] A=[*P,N,N]@pd
linalg_lstsq  T=fc self=[*P,M,N]@pd b=[*P,M,K] rcond=none driver=none|'gels'|'gelsy'|'gelsd'|'gelss'
linalg_pinv  T=fc self=[*P,M,N] atol=none|R[] rtol=none|R[] hermitian=false
linalg_polar,linalg_matrix_sqrth  T=fc A=[*P,N,N]@pd self=[*P,N,N]@pd
linalg_vector_norm,norm,linalg__powsum,_foreach_norm,_foreach_powsum  T=fc ord=2|1|0|3.5|0.5 p=2|1|0|3.5|0.5
_compute_linear_combination  input=[N,*P] coefficients=[M,N]

# Reductions, order
topk  k=upto(self,dim)
kthvalue  self=[*W] k=from1(self,dim)
histc  T=float bins=1..8 min=0 max=0|1|4
histogram  T=float bins=1..8|[1+B]@inc range=none|(0.0,1.0) weight=none|[@shape(self)]
histogram.bins_tensor,histogram.bins_tensor_out  T=float bins=[2+B]@inc weight=none|[@shape(self)]
_histogramdd_bin_edges,_histogramdd_from_bin_cts  T=float self=[N,2] bins=1..4^2 range=none|(0.0,1.0,0.0,1.0) weight=none|[N]
_histogramdd_from_bin_tensors  T=float self=[N,2] bins=list(2,[2+B]@inc) weight=none|[N]
bincount  T=int self=[N] weights=none|A[N] minlength=0..4
bucketize  T=real boundaries=[B]@inc
searchsorted  T=real sorted_sequence=[B]@inc sorter=none side=none self=[*S]
searchsorted  T=real sorted_sequence=[*P,B]@inc self=[*P,N] sorter=none side=none|'left' right=false
isin  elements=[*S] test_elements=[*S1]
logsumexp  T=any
std,var,std_mean,var_mean  T=fc correction=none|0|1|2
cumprod,cumsum,logcumsumexp,_logcumsumexp,cummax,cummin,sort,mode,median,nanmedian  T=any !outs
aminmax  T=real
unique_dim,unique_dim_consecutive  self=[*W]
nonzero_static  size=0..5 fill_value=-1
multinomial  T=float self=[1+N]|[M,1+N] num_samples=1
binomial  T=float count=[*S] prob=[*S]
renorm  T=fc self=[*V] p=2|1|0.5 maxnorm=1|0.5
hash_tensor  mode=0

# Views and copies
view,_unsafe_view,_reshape_copy,view_copy  size=reshape(self)
_reshape_alias,_reshape_alias_copy  self=[*S] size=shape(self) stride=strides(self) !unchecked
as_strided,as_strided_copy  self=[*W] size=(1..2,1..2) stride=(0..1,0..1) storage_offset=none|0|1
as_strided_scatter  self=[*W] src=[A,B] size=(A,B) stride=(0..1,0..1) storage_offset=none|0|1 A:=1..2 B:=1..2
expand,expand_copy  size=expanded(self)
permute,permute_copy  dims=perm(self)
t,t_copy  self=[*P]
select,select_copy  self=[*W] index=at(self,dim)
select_scatter  self=[*W] src=[@drop(self,dim)] index=at(self,dim)
select_backward  input_sizes=(*W) grad_output=[@drop(*W,dim)] dim=dim(*W) index=0
slice,slice_copy  self=[*W] start=none|-4..4 end=none|-4..6 step=1..3
slice_scatter  self=[*W] start=0 end=N step=1 src=[@with(self,dim,N)] N=none
slice_scatter  self=[*W] start=none end=none step=1 src=[@shape(self)]
slice_backward  input_sizes=(*W) dim=0 start=0 end=sizeof(*W,0) step=1 grad_output=[*W]
split,unsafe_split,split_copy  self=[*W] split_size=1..4
split_with_sizes,unsafe_split_with_sizes,split_with_sizes_copy  self=[*W] split_sizes=partition(self,dim)
narrow_copy  self=[*W] start=0 length=upto(self,dim)
unbind,unbind_copy  self=[*W]
unfold,unfold_copy  self=[*W] dimension=dim(self) size=upto(self,dimension) step=1..3
unfold_backward  input_sizes=(M,N) grad_in=[(M-L)/Z+1,N,L] M:=3..6 L:=1..3 Z:=1..2 dim=0 size=L step=Z !unchecked
diagonal,diagonal_copy  self=[*V] offset=-2..2 dim1=0 dim2=1|-1
diagonal_scatter  self=[N,N,*P] src=[*P,N] offset=0 dim1=0 dim2=1
diagonal_backward  input_sizes=(N,N,*P) grad_output=[*P,N] offset=0 dim1=0 dim2=1
diag_embed  self=[*W] offset=-2..2 dim1=-2|0 dim2=-1
unsqueeze,unsqueeze_copy  dim=newdim(self)
view_as_complex,view_as_complex_copy  T=float self=[*S,2]
view_as_real,view_as_real_copy  T=complex
_fw_primal,_fw_primal_copy  level=0
roll  shifts=-3..3 dims=dim(self)
roll  shifts=(-3..3,-3..3) dims=dims2(self) self=[*V]
rot90  self=[*V] k=-1..4 dims=dims2(self)
flip  dims=dims(self)
repeat  repeats=repeats(self)
repeat_interleave  repeats=idx[N] output_size=none
pixel_shuffle  self=[*P,C*R*R,H,W] upscale_factor=R R:=1..3
pixel_unshuffle  self=[*P,C,H*R,W*R] downscale_factor=R R:=1..3
channel_shuffle  self=[N,G*C,*P] groups=G G:=1..3
cat  tensors=cat(dim) !distinct
stack,_stack  tensors=list(1..3,[*S]) dim=newdim(*S)
stack.out  tensors=list(1..3,[*S]) dim=newdim(*S) !distinct
block_diag  tensors=list(1..3,[*P])
_chunk_cat  tensors=list(1..3,[*W]) dim=0 num_chunks=1..3 !unchecked
constant_pad_nd  pad=pads(self)
lift_fresh_copy  self=[*S]
_to_copy  memory_format=none|contiguous|preserve|channels_last non_blocking=false
clone  memory_format=none|contiguous|preserve
copy,copy_  src=A[~S] self=[*S]
_copy_from  self=[*S] dst=A[*S]
complex  T=float real=[*S] imag=[~S]
polar  T=float abs=[*S] angle=[~S]
set.source_Tensor,set_.source_Tensor  self=[*S] source=[*S1]
resize  size=(*S1) memory_format=none|none|contiguous
resize_as  the_template=[*S1] memory_format=none|none|contiguous
_resize_output  self=[*S] size=(*S1) device=cpu

# Padding
reflection_pad1d,replication_pad1d  W:=3..6 self=[C,W]|[N,C,W] padding=0..2^2 !distinct
reflection_pad2d,replication_pad2d  H:=3..6 W:=3..6 self=[C,H,W]|[N,C,H,W] padding=0..2^4 !distinct
reflection_pad3d,replication_pad3d  D:=3..5 H:=3..5 W:=3..5 self=[C,D,H,W]|[N,C,D,H,W] padding=0..2^6 !distinct
reflection_pad1d_backward,replication_pad1d_backward  W:=3..6 A:=0..2 B:=0..2 grad_output=[N,C,W+A+B] self=[N,C,W] padding=(A,B) !unchecked
    !distinct
reflection_pad1d_backward,replication_pad1d_backward  W:=3..6 A:=0..2 B:=0..2 grad_output=[C,W+A+B] self=[C,W] padding=(A,B) !unchecked
    !distinct
reflection_pad2d_backward,replication_pad2d_backward  H:=3..6 W:=3..6 A:=0..2 B:=0..2 grad_output=[N,C,H+A+B,W+A+B] self=[N,C,H,W]
    padding=(A,B,A,B) !unchecked !distinct
reflection_pad2d_backward,replication_pad2d_backward  H:=3..6 W:=3..6 A:=0..2 B:=0..2 grad_output=[C,H+A+B,W+A+B] self=[C,H,W]
    padding=(A,B,A,B) !unchecked !distinct
reflection_pad3d_backward,replication_pad3d_backward  D:=3..5 H:=3..5 W:=3..5 A:=0..2 B:=0..2 grad_output=[N,C,D+A+B,H+A+B,W+A+B]
    self=[N,C,D,H,W] padding=(A,B,A,B,A,B) !unchecked !distinct

# Pooling
avg_pool1d  T=float L:=4..7 K:=1..3 self=[C,L]|[N,C,L] kernel_size=(K) stride=()|(1..3) padding=(0..K/2)
avg_pool2d  T=float H:=4..7 W:=4..7 K:=1..3 J:=1..3 self=[C,H,W]|[N,C,H,W] kernel_size=(K,J) stride=()|(1..3,1..3) padding=(0..K/2,0..J/2)|0
    divisor_override=none|2
avg_pool3d  T=float D:=4..6 H:=4..6 W:=4..6 K:=1..3 self=[C,D,H,W]|[N,C,D,H,W] kernel_size=(K,K,K)|(K) stride=()|(1..2,1..2,1..2)
    padding=(0..K/2)|0 divisor_override=none|2
avg_pool2d_backward  T=float H:=4..7 W:=4..7 K:=1..3 J:=1..3 U:=1..2 V:=1..2 A:=0..K/2 B:=0..J/2 self=[N,C,H,W]
    grad_output=[N,C,(H+2*A-K)/U+1,(W+2*B-J)/V+1] kernel_size=(K,J) stride=(U,V) padding=(A,B) ceil_mode=false divisor_override=none|2
avg_pool3d_backward  T=float H:=4..6 K:=1..3 U:=1..2 A:=0..K/2 self=[N,C,H,H,H] grad_output=[N,C,(H+2*A-K)/U+1,(H+2*A-K)/U+1,(H+2*A-K)/U+1]
    kernel_size=(K,K,K) stride=(U,U,U) padding=(A,A,A) ceil_mode=false divisor_override=none|2
max_pool2d_with_indices  T=float H:=5..8 W:=5..8 K:=1..3 J:=1..3 self=[C,H,W]|[N,C,H,W] kernel_size=(K,J) stride=()|(1..3,1..3)
    padding=(0..K/2,0..J/2)|0 dilation=1|(1..2,1..2)
max_pool3d_with_indices  T=float D:=5..6 H:=5..6 W:=5..6 K:=1..3 self=[C,D,H,W]|[N,C,D,H,W] kernel_size=(K,K,K)|(K)
    stride=()|(1..2,1..2,1..2) padding=(0..K/2)|0 dilation=1|(1..2,1..2,1..2) !distinct
max_pool2d_with_indices_backward  T=float H:=5..8 W:=5..8 K:=1..3 J:=1..3 U:=1..2 V:=1..2 A:=0..K/2 B:=0..J/2 self=[N,C,H,W]
    grad_output=[N,C,(H+2*A-K)/U+1,(W+2*B-J)/V+1] indices=i64[N,C,(H+2*A-K)/U+1,(W+2*B-J)/V+1]<H*W kernel_size=(K,J) stride=(U,V)
    padding=(A,B) dilation=1 ceil_mode=false !unchecked
max_pool3d_with_indices_backward  T=float H:=5..6 K:=1..3 U:=1..2 A:=0..K/2 self=[N,C,H,H,H]
    grad_output=[N,C,(H+2*A-K)/U+1,(H+2*A-K)/U+1,(H+2*A-K)/U+1] indices=i64[N,C,(H+2*A-K)/U+1,(H+2*A-K)/U+1,(H+2*A-K)/U+1]<H*H*H
    kernel_size=(K,K,K) stride=(U,U,U) padding=(A,A,A) dilation=1 ceil_mode=false !unchecked
adaptive_avg_pool1d  T=float self=[C,L]|[N,C,L] output_size=1..4
adaptive_avg_pool2d,_adaptive_avg_pool2d,adaptive_max_pool2d  T=float H:=1..6 W:=1..6 self=[C,H,W]|[N,C,H,W] output_size=(1..4,1..4)
adaptive_avg_pool3d,_adaptive_avg_pool3d,adaptive_max_pool3d  T=float D:=1..5 H:=1..5 W:=1..5 self=[C,D,H,W]|[N,C,D,H,W]
    output_size=(1..3,1..3,1..3) !distinct
_adaptive_avg_pool2d_backward  T=float H:=1..6 W:=1..6 self=[N,C,H,W] grad_output=[N,C,1..4,1..4] !unchecked
_adaptive_avg_pool2d_backward  T=float H:=1..6 W:=1..6 self=[C,H,W] grad_output=[C,1..4,1..4] !unchecked
_adaptive_avg_pool3d_backward,adaptive_avg_pool3d_backward  T=float H:=1..5 W:=1..5 self=[N,C,H,W,W] grad_output=[N,C,1..3,1..3,1..3]
    !unchecked
adaptive_max_pool2d_backward  T=float H:=1..6 W:=1..6 A:=1..4 B:=1..4 self=[N,C,H,W] grad_output=[N,C,A,B] indices=i64[N,C,A,B]<H*W
    !unchecked
adaptive_max_pool3d_backward  T=float H:=1..4 A:=1..3 self=[N,C,H,H,H] grad_output=[N,C,A,A,A] indices=i64[N,C,A,A,A]<H*H*H !unchecked
fractional_max_pool2d  T=float H:=4..7 W:=4..7 self=[N,C,H,W] kernel_size=(2,2) output_size=(1..3,1..3) random_samples=[N,C,2]
fractional_max_pool2d  T=float H:=4..7 W:=4..7 self=[C,H,W] kernel_size=(2,2) output_size=(1..3,1..3) random_samples=[1,C,2]
fractional_max_pool3d  T=float H:=4..6 self=[N,C,H,H,H] kernel_size=(2,2,2) output_size=(1..3,1..3,1..3) random_samples=[N,C,3]
fractional_max_pool2d_backward  T=float H:=4..7 self=[N,C,H,H] grad_output=[N,C,2,2] kernel_size=(2,2) output_size=(2,2)
    indices=i64[N,C,2,2]<H*H !unchecked
fractional_max_pool3d_backward  T=float H:=4..6 self=[N,C,H,H,H] grad_output=[N,C,2,2,2] kernel_size=(2,2,2) output_size=(2,2,2)
    indices=i64[N,C,2,2,2]<H*H*H !unchecked
max_unpool2d  A:=3..6 B:=3..6 self=[N,C,H,W]|[C,H,W] indices=i64[@shape(self)]<A*B output_size=(A,B)
max_unpool3d  A:=3..5 self=[N,C,2,2,2]|[C,2,2,2] indices=i64[@shape(self)]<64 output_size=(4,4,4) stride=(2,2,2) padding=(0,0,0)

# Resampling
upsample_linear1d,upsample_nearest1d,_upsample_nearest_exact1d  T=float L:=1..6 self=[N,C,L] output_size=(1..6) scales=none|none|2.0
upsample_linear1d_backward,upsample_nearest1d_backward,_upsample_nearest_exact1d_backward  T=float L:=1..6 A:=1..6 grad_output=[N,C,A]
    output_size=(A) input_size=(N,C,L) scales=none
upsample_bicubic2d,upsample_bilinear2d,upsample_nearest2d,_upsample_nearest_exact2d,_upsample_bilinear2d_aa,_upsample_bicubic2d_aa,
    _upsample_lanczos2d_aa  T=float H:=1..6 W:=1..6 self=[N,C,H,W] output_size=(1..6,1..6) scales_h=none|none|2.0 scales_w=none|none|2.0
upsample_bicubic2d.out,upsample_bilinear2d.out,_upsample_bilinear2d_aa.out,_upsample_bicubic2d_aa.out,_upsample_lanczos2d_aa.out  T=float
    H:=1..6 W:=1..6 self=[N,C,H,W] output_size=(1..6,1..6) scales_h=none|none|2.0 scales_w=none|none|2.0 !outs
upsample_bicubic2d_backward,upsample_bilinear2d_backward,upsample_nearest2d_backward,_upsample_nearest_exact2d_backward,
    _upsample_bilinear2d_aa_backward,_upsample_bicubic2d_aa_backward,_upsample_lanczos2d_aa_backward  T=float H:=1..6 W:=1..6 A:=1..6
    B:=1..6 grad_output=[N,C,A,B] output_size=(A,B) input_size=(N,C,H,W) scales_h=none scales_w=none !distinct
upsample_trilinear3d,upsample_nearest3d,_upsample_nearest_exact3d  T=float D:=1..4 H:=1..4 W:=1..4 self=[N,C,D,H,W]
    output_size=(1..4,1..4,1..4) scales_d=none scales_h=none|2.0 scales_w=none
upsample_trilinear3d_backward,upsample_nearest3d_backward,_upsample_nearest_exact3d_backward  T=float D:=1..4 H:=1..4 W:=1..4 A:=1..4
    B:=1..4 grad_output=[N,C,A,B,A] output_size=(A,B,A) input_size=(N,C,D,H,W) scales_d=none scales_h=none scales_w=none
grid_sampler_2d,_grid_sampler_2d_cpu_fallback  T=float H:=1..5 W:=1..5 input=[N,C,H,W] grid=[N,A,B,2] interpolation_mode=0..2
    padding_mode=0..2
grid_sampler_2d_backward,_grid_sampler_2d_cpu_fallback_backward  T=float H:=1..5 W:=1..5 grad_output=[N,C,A,B] input=[N,C,H,W]
    grid=[N,A,B,2] interpolation_mode=0..2 padding_mode=0..2 output_mask=bool^2 !unchecked
grid_sampler_3d  T=float H:=1..4 input=[N,C,H,H,H] grid=[N,A,B,A,3] interpolation_mode=0..1 padding_mode=0..2
grid_sampler_3d_backward  T=float H:=1..4 grad_output=[N,C,A,B,A] input=[N,C,H,H,H] grid=[N,A,B,A,3] interpolation_mode=0..1
    padding_mode=0..2 output_mask=bool^2 !unchecked
affine_grid_generator  T=float theta=[N,2,3] size=(N,C,H,W)
affine_grid_generator  T=float theta=[N,3,4] size=(N,C,H,W,W)
im2col  H:=5..8 W:=5..8 self=[N,C,H,W]|[C,H,W] kernel_size=(1..3,1..3) dilation=(1..2,1..2) padding=(0..1,0..1) stride=(1..2,1..2)
col2im  H:=5..8 K:=1..3 U:=1..2 self=[N,C*K*K,((H-K)/U+1)*((H-K)/U+1)] output_size=(H,H) kernel_size=(K,K) dilation=(1,1) padding=(0,0)
    stride=(U,U)

# Convolution
convolution,_convolution,mkldnn_convolution,convolution_overrideable  T=float G:=1..2 I:=1..2 O:=1..3 H:=5..8 W:=5..8 K:=1..3 J:=1..3
    input=[N,G*I,H,W] self=[N,G*I,H,W] weight=[G*O,I,K,J] bias=none|[G*O] stride=(1..2,1..2) padding=(0..1,0..1) dilation=(1..2,1..2)
    transposed=false output_padding=(0,0) groups=G
convolution,_convolution  T=float G:=1..2 I:=1..2 O:=1..3 H:=4..7 W:=4..7 K:=1..3 J:=1..3 U:=1..2 V:=1..2 input=[N,G*I,H,W]
    weight=[G*I,O,K,J] bias=none|[G*O] stride=(U,V) padding=(0,0) dilation=(1,1) transposed=true output_padding=(0..U-1,0..V-1) groups=G
convolution,_convolution,mkldnn_convolution  T=float G:=1..2 I:=1..2 O:=1..3 L:=5..8 K:=1..3 input=[N,G*I,L] self=[N,G*I,L] weight=[G*O,I,K]
    bias=none|[G*O] stride=(1..2) padding=(0..1) dilation=(1..2) transposed=false output_padding=(0) groups=G
convolution,_convolution  T=float G:=1..2 I:=1..2 O:=1..3 L:=4..7 K:=1..3 U:=1..2 input=[N,G*I,L] weight=[G*I,O,K] bias=none|[G*O]
    stride=(U) padding=(0) dilation=(1) transposed=true output_padding=(0..U-1) groups=G
convolution,_convolution,mkldnn_convolution  T=float G:=1..2 I:=1..2 O:=1..2 D:=5..6 H:=5..6 W:=5..6 K:=1..3 input=[N,G*I,D,H,W]
    self=[N,G*I,D,H,W] weight=[G*O,I,K,K,K] bias=none|[G*O] stride=(1..2,1..2,1..2) padding=(0..1,0..1,0..1) dilation=(1..2,1,1)
    transposed=false output_padding=(0,0,0) groups=G
convolution,_convolution  T=float I:=1..2 O:=1..2 D:=3..4 H:=3..4 K:=1..3 input=[N,I,D,H,H] weight=[I,O,K,K,K] bias=none|[O] stride=(1,1,1)
    padding=(0..1,0,0) dilation=(1,1,1) transposed=true output_padding=(0,0,0) groups=1
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..3 H:=5..8 W:=5..8 K:=1..3 J:=1..3 U:=1..2 V:=1..2 A:=0..1 B:=0..1 E:=1..2
    grad_output=[N,G*O,(H+2*A-E*(K-1)-1)/U+1,(W+2*B-E*(J-1)-1)/V+1] input=[N,G*I,H,W] weight=[G*O,I,K,J] bias_sizes=(G*O) stride=(U,V)
    padding=(A,B) dilation=(E,E) transposed=false output_padding=(0,0) groups=G output_mask=bool^3
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..3 H:=5..8 W:=5..8 K:=1..3 J:=1..3 U:=1..2 V:=1..2 A:=0..1 B:=0..1 E:=1..2
    grad_output=[N,G*O,(H+2*A-E*(K-1)-1)/U+1,(W+2*B-E*(J-1)-1)/V+1] input=[N,G*I,H,W] weight=[G*O,I,K,J] bias_sizes=none stride=(U,V)
    padding=(A,B) dilation=(E,E) transposed=false output_padding=(0,0) groups=G output_mask=(bool,bool,false)
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..3 L:=5..8 K:=1..3 U:=1..2 A:=0..1 grad_output=[N,G*O,(L+2*A-K)/U+1] input=[N,G*I,L]
    weight=[G*O,I,K] bias_sizes=(G*O) stride=(U) padding=(A) dilation=(1) transposed=false output_padding=(0) groups=G output_mask=bool^3
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..3 L:=5..8 K:=1..3 U:=1..2 A:=0..1 grad_output=[N,G*O,(L+2*A-K)/U+1] input=[N,G*I,L]
    weight=[G*O,I,K] bias_sizes=none stride=(U) padding=(A) dilation=(1) transposed=false output_padding=(0) groups=G
    output_mask=(bool,bool,false)
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..2 H:=4..6 K:=1..3 grad_output=[N,G*O,H+K-1,H+K-1] input=[N,G*I,H,H] weight=[G*I,O,K,K]
    bias_sizes=(G*O) stride=(1,1) padding=(0,0) dilation=(1,1) transposed=true output_padding=(0,0) groups=G output_mask=bool^3
convolution_backward  T=float G:=1..2 I:=1..2 O:=1..2 H:=4..6 K:=1..3 grad_output=[N,G*O,H+K-1,H+K-1] input=[N,G*I,H,H] weight=[G*I,O,K,K]
    bias_sizes=none stride=(1,1) padding=(0,0) dilation=(1,1) transposed=true output_padding=(0,0) groups=G output_mask=(bool,bool,false)
convolution_backward  T=float I:=1..2 O:=1..2 H:=4..5 K:=1..3 grad_output=[N,O,H-K+1,H-K+1,H-K+1] input=[N,I,H,H,H] weight=[O,I,K,K,K]
    bias_sizes=(O) stride=(1,1,1) padding=(0,0,0) dilation=(1,1,1) transposed=false output_padding=(0,0,0) groups=1 output_mask=bool^3
convolution_backward  T=float I:=1..2 O:=1..2 H:=4..5 K:=1..3 grad_output=[N,O,H-K+1,H-K+1,H-K+1] input=[N,I,H,H,H] weight=[O,I,K,K,K]
    bias_sizes=none stride=(1,1,1) padding=(0,0,0) dilation=(1,1,1) transposed=false output_padding=(0,0,0) groups=1
    output_mask=(bool,bool,false)
conv_tbc  T=float L:=4..7 K:=1..3 self=[L,B,I] weight=[K,I,O] bias=[O] pad=0..1
slow_conv_dilated2d  T=float H:=5..8 W:=5..8 K:=1..3 self=[N,I,H,W] weight=[O,I,K,K] kernel_size=(K,K) bias=none|[O] stride=(1..2,1..2)
    padding=(0..1,0..1) dilation=(1..2,1..2)
slow_conv_dilated3d  T=float H:=5..6 K:=1..3 self=[N,I,H,H,H] weight=[O,I,K,K,K] kernel_size=(K,K,K) bias=none|[O] stride=(1..2,1,1)
    padding=(0..1,0,0) dilation=(1..2,1,1)
slow_conv_transpose2d  T=float H:=4..6 W:=4..6 K:=1..3 self=[N,I,H,W] weight=[I,O,K,K] kernel_size=(K,K) bias=none|[O] stride=(1..2,1..2)
    padding=0 output_padding=0 dilation=1 !distinct
slow_conv_transpose3d  T=float H:=3..4 K:=1..3 self=[N,I,H,H,H] weight=[I,O,K,K,K] kernel_size=(K,K,K) bias=none|[O] stride=(1..2,1,1)
    padding=0 output_padding=0 dilation=1 !distinct
slow_conv3d_forward  T=float H:=4..6 K:=1..3 self=[N,I,H,H,H] weight=[O,I,K,K,K] kernel_size=(K,K,K) bias=none|[O] stride=(1..2,1,1)
    padding=(0..1,0,0)
_slow_conv2d_forward  T=float H:=4..7 K:=1..3 self=[N,I,H,H] weight=[O,I,K,K] kernel_size=(K,K) bias=none|[O] stride=(1..2,1..2)
    padding=(0..1,0..1)
_slow_conv2d_backward  T=float H:=4..7 K:=1..3 grad_output=[N,O,H-K+1,H-K+1] self=[N,I,H,H] weight=[O,I,K,K] kernel_size=(K,K) stride=(1,1)
    padding=(0,0) output_mask=bool^3 !unchecked

# Normalisation
native_layer_norm  T=float input=[*P,*Q] normalized_shape=(*Q) weight=none|[*Q] bias=none|[*Q] eps=0.00001
native_layer_norm_backward  T=float grad_out=[*P,*Q] input=[*P,*Q] normalized_shape=(*Q) mean=[*P,1Q] rstd=[*P,1Q] weight=none|[*Q]
    bias=none|[*Q] output_mask=bool^3 !unchecked
native_group_norm  T=float input=[B,G*D,*P] weight=none|[G*D] bias=none|[G*D] N=B C=G*D HxW=prod(*P) group=G eps=0.00001 G:=1..3
native_group_norm_backward  T=float grad_out=[B,G*D,*P] input=[B,G*D,*P] mean=[B,G] rstd=[B,G] weight=none|[G*D] N=B C=G*D HxW=prod(*P)
    group=G output_mask=bool^3 G:=1..3
native_batch_norm,_native_batch_norm_legit,_native_batch_norm_legit_functional,_native_batch_norm_legit_no_training,_batch_norm_with_update,
    _batch_norm_with_update_functional,_batch_norm_no_update,batch_norm_update_stats  T=float input=[N,C,*P] weight=none|[C] bias=none|[C]
    running_mean=none|[C] running_var=none|[C] training=true momentum=0.1 eps=0.00001 !unchecked
native_batch_norm,_native_batch_norm_legit,_native_batch_norm_legit_functional,_native_batch_norm_legit_no_training,_batch_norm_with_update,
    _batch_norm_with_update_functional,_batch_norm_no_update,batch_norm_update_stats  T=float input=[N,C,*P] weight=f32[C] bias=f32[C]
    running_mean=f32[C] running_var=f32[C] momentum=0.1 eps=0.00001 !unchecked
_native_batch_norm_legit.no_stats,_native_batch_norm_legit.no_stats_out  T=float input=[N,C,*P] weight=none|[C] bias=none|[C] training=true
    momentum=0.1 eps=0.00001
native_batch_norm_backward  T=float grad_out=[N,C,*P] input=[N,C,*P] weight=none|[C] running_mean=none|[C] running_var=none|[C]
    save_mean=[C] save_invstd=[C] train=true eps=0.00001 output_mask=bool^3 !unchecked !nonempty
native_batch_norm_backward  T=float grad_out=[N,C,*P] input=[N,C,*P] weight=none|[C] running_mean=[C] running_var=[C] save_mean=none
    save_invstd=none train=false eps=0.00001 output_mask=bool^3 !unchecked !nonempty
batch_norm_backward  T=float grad_out=[N,C,*P] input=[N,C,*P] weight=[C] running_mean=[C] running_var=[C] save_mean=[C] save_var=[C]
    eps=0.00001 output_mask=bool^3 reserve=u8[0] !unchecked !nonempty
_weight_norm_interface  T=float v=[O,I,*P] g=[O] dim=0 !unchecked !contiguous !outs
_weight_norm_interface_backward  T=float grad_w=[O,I,*P] saved_v=[O,I,*P] saved_g=[O,1,1P] saved_norms=[O,1,1P] dim=0 !unchecked !contiguous
    !outs

# Softmax, attention
_softmax,_log_softmax  T=float half_to_float=false
softmax,log_softmax  dtype=none|none|f32
_softmax_backward_data,_log_softmax_backward_data  T=float grad_output=[*S] output=[*S] dim=dim(*S) input_dtype=dtypeof(grad_output)
_safe_softmax  T=float
_masked_softmax  T=float self=[*S] mask=bool[*S] dim=none|dim(*S) mask_type=none|2 !unchecked !nonempty
_masked_softmax_backward  T=float grad_output=[*S] output=[*S] mask=bool[*S] dim=none|dim(*S) !unchecked !nonempty
_scaled_dot_product_flash_attention_for_cpu  T=float query=[B,H,L,E] key=[B,H,M,E] value=[B,H,M,E] dropout_p=0.0
    attn_mask=none|[L,M]|[B,1,L,M] scale=none|0.5 !unchecked !nonempty
_scaled_dot_product_flash_attention_for_cpu_backward  T=float grad_out=[B,H,L,E] query=[B,H,L,E] key=[B,H,M,E] value=[B,H,M,E] out=[B,H,L,E]
    logsumexp=f32[B,H,L] dropout_p=0.0 attn_mask=none scale=none|0.5 !unchecked !nonempty
_fused_sdp_choice  T=float query=[B,H,L,E] key=[B,H,M,E] value=[B,H,M,E] attn_mask=none|[L,M] dropout_p=0.0 scale=none enable_gqa=false
_transform_bias_rescale_qkv  T=float qkv=[B,L,3*H*D] qkv_bias=[3*H*D] num_heads=H
_native_multi_head_attention  T=float query=[B,L,H*D] key=[B,L,H*D] value=[B,L,H*D] embed_dim=H*D num_head=H qkv_weight=[3*H*D,H*D]
    qkv_bias=[3*H*D] proj_weight=[H*D,H*D] proj_bias=[H*D] mask=none mask_type=none !unchecked !nonempty
_transformer_encoder_layer_fwd  T=float src=[B,L,H*D] embed_dim=H*D num_heads=H qkv_weight=[3*H*D,H*D] qkv_bias=[3*H*D]
    proj_weight=[H*D,H*D] proj_bias=[H*D] eps=0.00001 norm_weight_1=[H*D] norm_bias_1=[H*D] norm_weight_2=[H*D] norm_bias_2=[H*D]
    ffn_weight_1=[F,H*D] ffn_bias_1=[F] ffn_weight_2=[H*D,F] ffn_bias_2=[H*D] mask=none mask_type=none !unchecked !nonempty

# Embedding, recurrent
embedding  weight=[V,D] indices=idx[*S]<V V:=1..6 padding_idx=-1|0 sparse=false
embedding_dense_backward  grad_output=[*S,D] indices=idx[*S]<V num_weights=V padding_idx=-1|0 V:=1..6 !unchecked
embedding_renorm  T=float self=[V,D] indices=idx[*S]<V max_norm=1.0 norm_type=2.0 V:=1..6 !contiguous
_embedding_bag,_embedding_bag_forward_only  T=float V:=1..6 weight=[V,D] indices=idx[N]<V offsets=idx[B]=0 mode=0..2 sparse=false
    per_sample_weights=none include_last_offset=false padding_idx=-1|0 B:=1..3 !unchecked
_embedding_bag_dense_backward,_embedding_bag_backward  T=float V:=1..6 B:=1..3 grad=[B,D] indices=idx[N]<V offset2bag=idx[N]=0
    bag_size=idx[B]=1 maximum_indices=idx[0] offsets=idx[B]=0 sparse=false num_weights=V mode=0..1 per_sample_weights=none padding_idx=-1
    !unchecked
_embedding_bag_per_sample_weights_backward  T=float V:=1..6 B:=1..3 grad=[B,D] weight=[V,D] indices=idx[N]<V offsets=idx[B]=0
    offset2bag=idx[N]=0 mode=0 padding_idx=-1 !unchecked
mkldnn_rnn_layer  T=float I:=1..3 H:=1..3 input=[L,B,I] weight0=[4*H,I] weight1=[4*H,H] weight2=[4*H] weight3=[4*H] hx_=[1,B,H] cx_=[1,B,H]
    reverse=false batch_sizes=() mode=2 hidden_size=H num_layers=1 has_biases=true bidirectional=false batch_first=false L:=1..3 B:=1..3
    !unchecked
_pack_padded_sequence  input=[L,B,*P] lengths=i64[B]=L batch_first=false L:=1..3

# Losses
binary_cross_entropy  T=float self=[*S] target=[*S] weight=none|[~S] reduction=0..2
binary_cross_entropy_with_logits  T=float self=[*S] target=[*S] weight=none|[~S] pos_weight=none|[~S] reduction=0..2
mse_loss,huber_loss,smooth_l1_loss,soft_margin_loss  T=float self=[*S] target=[~S]|[*S] reduction=0..2
binary_cross_entropy_backward,mse_loss_backward,huber_loss_backward,smooth_l1_loss_backward,soft_margin_loss_backward  T=float beta=1.0
    grad_output=[*S] self=[*S] target=[*S] weight=none|[~S] reduction=0
binary_cross_entropy_backward,mse_loss_backward,huber_loss_backward,smooth_l1_loss_backward,soft_margin_loss_backward  T=float beta=1.0
    grad_output=[] self=[*S] target=[*S] weight=none|[~S] reduction=1..2
nll_loss_forward  T=float C:=1..5 self=[N,C] target=i64[N]<C weight=none|[C] reduction=0..2 ignore_index=-100|0
nll_loss_forward  T=float C:=1..5 self=[C] target=i64[]<C weight=none|[C] reduction=0..2 ignore_index=-100|0
nll_loss_backward  T=float C:=1..5 grad_output=[N] self=[N,C] target=i64[N]<C weight=none|[C] reduction=0 ignore_index=-100 total_weight=[]
    !unchecked
nll_loss_backward  T=float C:=1..5 grad_output=[] self=[N,C] target=i64[N]<C weight=none|[C] reduction=1..2 ignore_index=-100
    total_weight=[] !unchecked
nll_loss2d_forward  T=float C:=1..5 self=[N,C,H,W] target=i64[N,H,W]<C weight=none|[C] reduction=0..2 ignore_index=-100|0
nll_loss2d_backward  T=float C:=1..5 grad_output=[N,H,W] self=[N,C,H,W] target=i64[N,H,W]<C weight=none|[C] reduction=0 ignore_index=-100
    total_weight=[] !unchecked
nll_loss2d_backward  T=float C:=1..5 grad_output=[] self=[N,C,H,W] target=i64[N,H,W]<C weight=none|[C] reduction=1..2 ignore_index=-100
    total_weight=[] !unchecked
multi_margin_loss  T=float C:=1..5 self=[N,C] target=i64[N]<C p=1|2 margin=1.0 weight=none|[C] reduction=0..2
multi_margin_loss_backward  T=float C:=1..5 grad_output=[N] self=[N,C] target=i64[N]<C p=1|2 margin=1.0 weight=none|[C] reduction=0
multi_margin_loss_backward  T=float C:=1..5 grad_output=[] self=[N,C] target=i64[N]<C p=1|2 margin=1.0 weight=none|[C] reduction=1..2
multilabel_margin_loss_forward  T=float C:=1..5 self=[N,C]|[C] target=i64[@shape(self)]<C reduction=0..2
multilabel_margin_loss_backward  T=float C:=1..5 grad_output=[N] self=[N,C] target=i64[N,C]<C reduction=0 is_target=[N,C]
multilabel_margin_loss_backward  T=float C:=1..5 grad_output=[] self=[N,C] target=i64[N,C]<C reduction=1..2 is_target=[N,C]
_ctc_loss  T=float U:=4..6 L:=1..2 C:=2..4 N:=1..3 log_probs=[U,N,C] targets=i64[N,L]=1 input_lengths=U^N target_lengths=L^N blank=0
    !unchecked
_ctc_loss.Tensor,_ctc_loss.Tensor_out  T=float U:=4..6 L:=1..2 C:=2..4 N:=1..3 log_probs=[U,N,C] targets=i64[N,L]=1 input_lengths=i64[N]=U
    target_lengths=i64[N]=L blank=0 !unchecked
_ctc_loss_backward  T=float U:=4..6 L:=1..2 C:=2..4 N:=1..3 grad=[N] log_probs=[U,N,C] targets=i64[N,L]=1 input_lengths=U^N
    target_lengths=L^N neg_log_likelihood=[N] log_alpha=[N,U,2*L+1] blank=0 !unchecked
_ctc_loss_backward.Tensor  T=float U:=4..6 L:=1..2 C:=2..4 N:=1..3 grad=[N] log_probs=[U,N,C] targets=i64[N,L]=1 input_lengths=i64[N]=U
    target_lengths=i64[N]=L neg_log_likelihood=[N] log_alpha=[N,U,2*L+1] blank=0 !unchecked

# Pointwise with conditions of their own
glu  T=float self=[*P,2*N] dim=-1
glu_backward  T=float grad_output=[*P,N] self=[*P,2*N] dim=-1
glu_jvp  T=float glu=[*P,N] x=[*P,2*N] dx=[*P,2*N] dim=-1
glu_backward_jvp  T=float grad_x=[*P,2*N] grad_glu=[*P,N] x=[*P,2*N] dgrad_glu=[*P,N] dx=[*P,2*N] dim=-1
gelu,gelu_backward  T=float approximate='none'|'tanh'
elu_backward,leaky_relu_backward,rrelu_with_noise_backward  T=float alpha=1|0.5 negative_slope=0.01 is_result=false self_is_result=false
    lower=0.125 upper=0.333
elu,celu,leaky_relu,hardsigmoid,hardswish,hardtanh,mish,silu,selu,softplus,softshrink,hardshrink,threshold,relu,log_sigmoid_forward  T=float
    lambd=0.5 alpha=1|0.5
log_sigmoid_backward  T=float grad_output=[*S] self=[*S] buffer=[*S]
hardsigmoid_backward,hardswish_backward,hardtanh_backward,mish_backward,silu_backward,softplus_backward,softshrink_backward,
    hardshrink_backward,threshold_backward,logit_backward,sigmoid_backward,tanh_backward  T=float grad_output=[*S] grad_out=[*S] self=[*S]
    output=[*S] eps=none|0.1 lambd=0.5 beta=1
rrelu_with_noise,rrelu_with_noise_functional  T=float self=[*S] noise=[*S] lower=0.125 upper=0.333 !unchecked !contiguous !outs
_prelu_kernel  T=float self=[*S] weight=[~S]
_prelu_kernel_backward  T=float grad_output=[*S] self=[*S] weight=[~S]
native_dropout  T=fc p=0.0|0.5|1.0 train=none|true|false
native_dropout_backward  T=fc grad_output=[*S] mask=bool[*S] scale=2.0
_fused_dropout,_masked_scale  T=float p=0.5 mask=u8[*S] scale=2.0
div,div_  self=[*S] other=[~S]=1|1|2|0.5|1.5|-1 rounding_mode=none|'floor'|'trunc'
remainder,fmod,floor_divide  self=[*S]|1|3|0.5 other=[~S]=1|1|2|0.5|1.5|-1
round  decimals=0|1|-1
mvlgamma  T=float p=1..2
polygamma  T=float n=0..2
special_zeta,igamma,igammac,hypot,nextafter,atan2,copysign  T=real
logit  T=real eps=none|0.1
bitwise_and,bitwise_or,bitwise_xor,bitwise_not  T=bits
bitwise_left_shift,bitwise_right_shift,__lshift__,__rshift__,__ilshift__,__irshift__  T=int
gcd,lcm  T=int
lerp  T=fc self=[*S] end=[~S] weight=[~S]|0.5|1.5
clamp,clamp_  min=none|0|1|[~S] max=none|2|0.5|[~S]
clamp.Tensor,clamp_.Tensor,clamp.Tensor_out  min=none|[~S] max=none|[~S]
where  condition=bool[~S] self=[*S] other=[~S]
float_power  T=real
frexp  T=float
heaviside  self=[*S] values=[~S]
_standard_gamma,_standard_gamma_grad,_sample_dirichlet,poisson  T=float self=[*S] output=[*S]
_dirichlet_grad  T=float x=[*P,N] alpha=[*P,N] total=[*P,N]
fake_quantize_per_tensor_affine_cachemask  T=float scale=0.5 zero_point=0 quant_min=0 quant_max=255
_fake_quantize_per_tensor_affine_cachemask_tensor_qparams  T=float scale=f32[1] zero_point=i32[1]=0 fake_quant_enabled=i64[1]=1 quant_min=0
    quant_max=255
_fake_quantize_learnable_per_tensor_affine  T=float scale=f32[1] zero_point=f32[1]=0 quant_min=0 quant_max=255 grad_factor=1.0
_fake_quantize_learnable_per_tensor_affine_backward  T=float grad=[*S] self=[*S] scale=f32[1] zero_point=f32[1]=0 quant_min=0 quant_max=255
    grad_factor=1.0
fake_quantize_per_channel_affine_cachemask  T=float self=[C,*P] scale=f32[C] zero_point=i32[C]=0 axis=0 quant_min=0 quant_max=255 !unchecked
_fake_quantize_learnable_per_channel_affine  T=float self=[C,*P] scale=f32[C] zero_point=f32[C]=0 axis=0 quant_min=0 quant_max=255
    grad_factor=1.0
_fake_quantize_learnable_per_channel_affine_backward  T=float grad=[C,*P] self=[C,*P] scale=f32[C] zero_point=f32[C]=0 axis=0 quant_min=0
    quant_max=255 grad_factor=1.0

# Indexing
gather  index=idx[@sub(self)]<sizeof(self,dim)
scatter,scatter_reduce,scatter_add  index=i64[@sub(self)]<sizeof(self,dim) src=[@shape(index)] value=1|0.5 reduce='add'|'multiply'
scatter_reduce  index=i64[@sub(self)]<sizeof(self,dim) src=[@shape(index)] reduce='sum'|'prod'|'mean'|'amax'|'amin'
index_select  index=idx[N]<sizeof(self,dim)
index_add,index_copy  self=[*S] index=idx[N]<sizeof(self,dim) source=[@with(self,dim,N)] alpha=1|2
index_reduce  self=[*S] index=idx[N]<sizeof(self,dim) source=[@with(self,dim,N)] reduce='prod'|'mean'|'amax'|'amin'
index_fill  self=[*S] index=i64[N]<sizeof(self,dim) value=1|0.5|[]
index_fill.int_Tensor,index_fill_.int_Tensor,index_fill.int_Tensor_out  self=[*S] index=i64[N]<sizeof(self,dim) value=[]
take  index=i64[*S1]<numel(self)
put  index=i64[*S1]<numel(self) source=[*S1]
index,_unsafe_index  self=[*W] indices=indices(self)
index_put,_index_put_impl,_unsafe_index_put  self=[*W] indices=indices(self) values=[]|[@indexed(self,indices)] unsafe=false
_unsafe_masked_index  self=[N,*P] mask=bool[M] indices=one(i64[M]<N) fill=0|1 N:=1..5
_unsafe_masked_index_put_accumulate  self=[N] mask=bool[M] indices=one(i64[M]<N) values=[M] N:=1..5
masked_fill  self=[*S] mask=bool[~S] value=1|0.5|[]
masked_fill.Tensor,masked_fill_.Tensor,masked_fill.Tensor_out  self=[*S] mask=bool[~S] value=[]
masked_scatter  self=[*S] mask=bool[~S]=0 source=[*S] !unchecked
masked_scatter_backward  grad_output=[*S] mask=bool[*S]=0 sizes=(*S) !unchecked
masked_select  self=[*S] mask=bool[~S]
segment_reduce  T=float data=[N,*P] reduce='sum'|'mean'|'max'|'min'|'prod' lengths=i64[1]=N indices=none offsets=none axis=0 unsafe=false
    initial=none !unchecked
_segment_reduce_backward  T=float grad=[1,*P] output=[1,*P] data=[N,*P] reduce='sum'|'mean'|'max'|'min' lengths=i64[1]=N offsets=none axis=0
    initial=none !unchecked
matmul_backward  grad=[M,N] self=[M,K] other=[K,N] mask=bool^2

# Fourier
_fft_c2c  T=complex self=[*W] dim=posdims(self) normalization=0..2 !unchecked
_fft_r2c  T=float self=[*W] dim=posdims(self) normalization=0..2 !unchecked
_fft_c2r  T=complex self=[*P,N] dim=(rank(*P)) normalization=0..2 last_dim_size=2*N-1|2*N-2 N:=2..5 !unchecked
fft_fftfreq,fft_rfftfreq  n=1..6 d=1.0|0.5

# Factories, random
arange  start=0|1|0.5 end=3|5|4.5 step=1|2|0.5
range  start=0|1|0.5 end=3|5|4.5 step=1|2 !unchecked
linspace,logspace  start=0|1|0.5|[] end=3|5|4.5|[] steps=0..5 base=2.0|3.0
eye  n=0..4 m=0..4
bartlett_window,blackman_window,hamming_window,hann_window,kaiser_window  window_length=0..6 dtype=none|f32|f64|bf16
empty_strided,new_empty_strided  size=(A,B) stride=(B,1)|(1,A)|(2*B,2)|(0,1)
empty_permuted  size=(A,B,C) physical_layout=(0,1,2)|(2,0,1)|(1,2,0)
randint  high=3..9|i64[]=5 low=0..2
randint_like  high=3..9|i64[]=1 low=0..2
randperm  n=0..6
random  from=0..2 to=none|5..9
random.to,random_.to,random.to_out  to=5..9
full  fill_value=1|0.5|true
bernoulli,geometric  T=real p=0.5|[~S]
bernoulli.p,bernoulli_.float,bernoulli.float_out,geometric,geometric_  T=real p=0.5
bernoulli.Tensor,bernoulli_.Tensor,bernoulli.Tensor_out  T=real p=[~S]
normal,normal_,log_normal,log_normal_,normal_functional  T=float mean=0.0|[*S] std=1.0|[~S]
normal.Tensor_Tensor,normal.Tensor_Tensor_out  T=float mean=[*S] std=[~S]
normal.Tensor_float,normal.Tensor_float_out  T=float mean=[*S] std=1.0
normal.float_Tensor,normal.float_Tensor_out  T=float mean=0.0 std=[*S]
cauchy,exponential,uniform  T=float

# Lists
_foreach_add,_foreach_sub,_foreach_mul,_foreach_div,_foreach_pow,_foreach_clamp_max,_foreach_clamp_min,_foreach_maximum,_foreach_minimum,
    _foreach_copy_  self=each([*S]) other=each([~S])|[] exponent=each([~S])|2|0.5 src=each([~S]) scalars=scalars|[n] scalar=2|0.5|1
_foreach_copy  self=each([*S]) src=each([~S]) !unchecked
_foreach_add.Tensor,_foreach_add_.Tensor,_foreach_add.Tensor_out,_foreach_mul.Tensor,_foreach_mul_.Tensor,_foreach_mul.Tensor_out,
    _foreach_div.Tensor,_foreach_div_.Tensor,_foreach_div.Tensor_out  self=each([*S]) other=[]
_foreach_add.List,_foreach_add_.List,_foreach_add.List_out,_foreach_mul.List,_foreach_mul_.List,_foreach_mul.List_out,_foreach_div.List,
    _foreach_div_.List,_foreach_div.List_out,_foreach_sub.List,_foreach_sub_.List,_foreach_sub.List_out  self=each([*S]) other=each([~S])
_foreach_maximum.List,_foreach_maximum_.List,_foreach_maximum.List_out,_foreach_minimum.List,_foreach_minimum_.List,
    _foreach_minimum.List_out,_foreach_clamp_max.List,_foreach_clamp_max_.List,_foreach_clamp_max.List_out,_foreach_clamp_min.List,
    _foreach_clamp_min_.List,_foreach_clamp_min.List_out  self=each([*S]) other=each([~S])
_foreach_pow.List,_foreach_pow_.List,_foreach_pow.List_out,_foreach_pow.ScalarAndTensor  self=2|0.5|each([*S]) exponent=each([~S])
_foreach_pow.List,_foreach_pow_.List,_foreach_pow.List_out  self=each([*S]) exponent=each([~S])
_foreach_pow.ScalarAndTensor  self=2|0.5 exponent=each([~S])
_foreach_pow.Scalar,_foreach_pow_.Scalar,_foreach_pow.Scalar_out  self=each([*S]) exponent=2|0.5|1
_foreach_pow.ScalarList,_foreach_pow_.ScalarList,_foreach_pow.ScalarList_out  self=each([*S]) exponent=scalars
_foreach_addcdiv,_foreach_addcmul  self=each([*S]) tensor1=each([~S]) tensor2=each([~S]) scalars=scalars value=1|2|0.5
_foreach_addcdiv.Tensor,_foreach_addcdiv_.Tensor,_foreach_addcdiv.Tensor_out,_foreach_addcmul.Tensor,_foreach_addcmul_.Tensor,
    _foreach_addcmul.Tensor_out  self=each([*S]) tensor1=each([*S]) tensor2=each([*S]) scalars=scalartensor
_foreach_lerp  T=fc self=each([*S]) tensors1=each([~S]) weights=each([~S]) weight=0.5|1.5
_foreach_lerp.ScalarList,_foreach_lerp_.ScalarList,_foreach_lerp.ScalarList_out  T=fc self=each([*S]) tensors1=each([~S]) weight=scalars
_foreach_zero,_foreach_clone,_foreach_max  self=each([*W])
_amp_foreach_non_finite_check_and_unscale  T=float self=each([*S]) found_inf=f32[] inv_scale=f32[]
_amp_update_scale  T=float self=f32[] growth_tracker=i32[] found_inf=f32[] scale_growth_factor=2.0 scale_backoff_factor=0.5
    growth_interval=3
_fused_adagrad,_fused_adam,_fused_adamw,_fused_sgd  T=float self=each([*S]) grads=each([*S]) state_sums=each([*S]) exp_avgs=each([*S])
    exp_avg_sqs=each([*S]) max_exp_avg_sqs=each([*S]) momentum_buffer_list=each([*S]) state_steps=each(f32[]) lr=0.1 lr_decay=0.0
    weight_decay=0.0|0.1 beta1=0.9 beta2=0.99 eps=0.00001 momentum=0.9 dampening=0.0 nesterov=false amsgrad=true is_first_step=bool
    grad_scale=none found_inf=none !unchecked !contiguous
_fused_adagrad.tensor_lr,_fused_adagrad_.tensor_lr,_fused_adagrad.tensor_lr_out,_fused_adam.tensor_lr,_fused_adam_.tensor_lr,
    _fused_adam.tensor_lr_out,_fused_adamw.tensor_lr,_fused_adamw_.tensor_lr,_fused_adamw.tensor_lr_out,_fused_sgd.tensor_lr,
    _fused_sgd_.tensor_lr,_fused_sgd.tensor_lr_out  T=float self=each([*S]) grads=each([*S]) state_sums=each([*S]) exp_avgs=each([*S])
    exp_avg_sqs=each([*S]) max_exp_avg_sqs=each([*S]) momentum_buffer_list=each([*S]) state_steps=each(f32[]) lr=f32[] lr_decay=0.0
    weight_decay=0.0|0.1 beta1=0.9 beta2=0.99 eps=0.00001 momentum=0.9 dampening=0.0 nesterov=false amsgrad=true is_first_step=bool
    grad_scale=none found_inf=none !unchecked !contiguous
)";

struct Exclusion {
  const char* prefix;  // of "name.overload"
  const char* why;
};

constexpr Exclusion kExcluded[] = {
    {"_test_", "made for tests of PyTorch itself"},
    {"_foobar", "made for tests of PyTorch itself"},
    {"_sparse", "sparse"},
    {"sparse_", "sparse"},
    {"_spdiags", "sparse"},
    {"_to_sparse", "sparse"},
    {"_to_dense", "sparse"},
    {"_coalesce", "sparse"},
    {"_indices", "sparse"},
    {"_values_copy", "sparse"},
    {"values", "sparse"},
    {"indices", "sparse"},
    {"crow_indices", "sparse"},
    {"col_indices", "sparse"},
    {"ccol_indices", "sparse"},
    {"row_indices", "sparse"},
    {"is_coalesced", "sparse"},
    {"dense_dim", "sparse"},
    {"sspaddmm", "sparse"},
    {"copy_sparse", "sparse"},
    {"resize_as_sparse", "sparse"},
    {"_convert_indices", "sparse"},
    {"_validate_compressed", "sparse"},
    {"hspmm", "sparse"},
    {"_nested", "nested"},
    {"_jagged", "nested"},
    {"_padded_dense", "nested"},
    {"to_padded_tensor", "nested"},
    {"quantize_", "quantized"},
    {"quantized_", "quantized"},
    {"dequantize", "quantized"},
    {"_empty_affine", "quantized"},
    {"_empty_per_channel", "quantized"},
    {"empty_quantized", "quantized"},
    {"_make_per_", "quantized"},
    {"int_repr", "quantized"},
    {"q_per_", "quantized"},
    {"q_scale", "quantized"},
    {"q_zero", "quantized"},
    {"_dyn_quant", "packs weights in a format of the CPU at hand"},
    {"_convert_weight", "packs weights in a format of the CPU at hand"},
    {"_weight_int", "packed weights"},
    {"_fused_moving_avg", "quantization observer, reads flags from data"},
    {"mkldnn_adaptive", "opaque layout"},
    {"mkldnn_linear", "opaque layout"},
    {"mkldnn_max_pool", "opaque layout"},
    {"mkldnn_reorder", "opaque layout"},
    {"mkldnn_rnn_layer_backward", "takes a workspace that only the forward can make"},
    {"mkldnn_convolution", "called through convolution"},
    {"to_mkldnn", "opaque layout"},
    {"_mkldnn", "opaque layout"},
    {"_cudnn", "no CPU kernel"},
    {"cudnn", "no CPU kernel"},
    {"miopen", "no CPU kernel"},
    {"_mps", "no CPU kernel"},
    {"mps_", "no CPU kernel"},
    {"_lstm_mps", "no CPU kernel"},
    {"lstm_mps", "no CPU kernel"},
    {"_triton", "no CPU kernel"},
    {"_thnn_fused", "no CPU kernel"},
    {"_nnpack", "no CPU kernel in this build"},
    {"_scaled_dot_product_fused", "no CPU kernel"},
    {"_scaled_grouped", "scaled types"},
    {"_scaled_mm", "scaled types"},
    {"_scaled_addmm", "scaled types"},
    {"_grouped_mm", "offsets are read from data"},
    {"conv_depthwise3d", "no CPU kernel"},
    {"convolution_overrideable", "no CPU kernel"},
    {"convolution_backward_overrideable", "no CPU kernel"},
    {"batch_norm_stats", "no CPU kernel"},
    {"batch_norm_elemt", "no CPU kernel"},
    {"batch_norm_gather", "no CPU kernel"},
    {"batch_norm_backward_elemt", "no CPU kernel"},
    {"batch_norm_backward_reduce", "no CPU kernel"},
    {"_fused_dropout", "no CPU kernel"},
    {"_masked_scale", "no CPU kernel"},
    {"matmul_backward", "no CPU kernel"},
    {"linear_backward", "no CPU kernel"},
    {"_pin_memory", "needs an accelerator"},
    {"is_pinned", "needs an accelerator"},
    {"from_file", "files"},
    {"_print", "prints"},
    {"_assert", "asserts on values"},
    {"_functional_assert", "asserts on values"},
    {"_functional_sym", "asserts on values"},
    {"sym_constrain", "asserts on values"},
    {"_make_dep_token", "tokens"},
    {"_linalg_check_errors", "asserts on values"},
    {"_fw_primal_copy", "only in inference mode"},
    {"_copy_from", "no CPU kernel"},
    {"_resize_output.", "no CPU kernel"},
    {"max_pool2d_backward", "no CPU kernel"},
    {"native_norm", "no CPU kernel"},
    {"_make_dual", "forward-mode autograd"},
    {"_new_zeros_with_same", "forward-mode autograd"},
    {"_has_same_storage", "forward-mode autograd"},
    {"_philox", "keys are read from data"},
    {"_lazy_clone", "copy-on-write storages"},
    {"_efficientzerotensor", "a tensor without storage"},
    {"lift", "for tensors from outside"},
    {"shallow_copy_data", "replaces a tensor's storage"},
    {"slice_inverse", "for functionalization"},
    {"_transform_bias_rescale_qkv", "for nested tensors"},
    {"_cummax_helper", "part of cummax, trusts its arguments"},
    {"_cummin_helper", "part of cummin, trusts its arguments"},
    {"_stack.", "part of stack, writes beyond a result that it was not meant for"},
    {"_compute_linear_combination", "part of matrix_exp, trusts its arguments"},
    {"_parallel_materialize", "made for tests of PyTorch itself"},
    {"set.source_Storage", "storages as arguments"},
    {"set_.source_Storage", "storages as arguments"},
    {"allclose", "a truth value of data"},
    {"equal", "a truth value of data"},
    {"_local_scalar_dense", "a value of data"},
    {"_is_all_true", "a truth value of data"},
    {"_is_any_true", "a truth value of data"},
    {"record_stream", "needs an accelerator"},
};

using Table = absl::flat_hash_map<std::string, std::vector<Recipe>>;

Table ParseTable() {
  std::vector<std::string> lines;
  for (const absl::string_view part : absl::StrSplit(kTable, '\n')) {
    if (part.empty() || part[0] == '#') continue;
    if (part[0] != ' ') {
      lines.emplace_back(part);
    } else {
      absl::StrAppend(&lines.back(), lines.back().back() == ',' ? "" : " ", absl::StripAsciiWhitespace(part));
    }
  }
  Table table;
  for (const std::string& line : lines) {
    const std::vector<std::string> items = absl::StrSplit(line, ' ', absl::SkipEmpty());
    Recipe recipe;
    for (std::size_t i = 1; i < items.size(); ++i) {
      const std::string& item = items[i];
      const std::size_t equals = item.find('=');
      if (item == "!unchecked") {
        recipe.unchecked = true;
      } else if (item == "!contiguous") {
        recipe.contiguous = true;
      } else if (item == "!nonempty") {
        recipe.nonempty = true;
      } else if (item == "!distinct") {
        recipe.distinct_outs = true;
      } else if (item == "!outs") {
        recipe.plain_outs = true;
      } else if (equals == std::string::npos || equals == 0) {
        throw std::invalid_argument(absl::StrCat("cross_ref recipes: '", item, "' in: ", line));
      } else if (item[equals - 1] == ':') {
        recipe.variables.emplace_back(item.substr(0, equals - 1), item.substr(equals + 1));
      } else if (item.substr(0, equals) == "T") {
        recipe.dtype_class = item.substr(equals + 1);
      } else {
        recipe.arguments[item.substr(0, equals)] = item.substr(equals + 1);
      }
    }
    for (const absl::string_view name : absl::StrSplit(items[0], ',')) table[std::string(name)].push_back(recipe);
  }
  return table;
}

const Table& TheTable() {
  static const Table& table = *new Table(ParseTable());
  return table;
}

}  // namespace

const std::vector<Recipe>& RecipesOf(const std::string& name, const std::string& overload) {
  static const std::vector<Recipe>& none = *new std::vector<Recipe>{Recipe()};
  std::string base(absl::StripPrefix(name, "aten::"));
  const Table& table = TheTable();
  const auto with_overload = [&] { return overload.empty() ? base : absl::StrCat(base, ".", overload); };
  for (const std::string& key : {with_overload(), base}) {
    if (const auto found = table.find(key); found != table.end()) return found->second;
  }
  if (absl::EndsWith(base, "_") && !absl::EndsWith(base, "__")) {
    base.pop_back();
    for (const std::string& key : {with_overload(), base}) {
      if (const auto found = table.find(key); found != table.end()) return found->second;
    }
  }
  return none;
}

std::vector<std::string> RecipeNames() {
  std::vector<std::string> names;
  for (const auto& [name, recipes] : TheTable()) names.push_back(name);
  return names;
}

std::string WhyExcluded(const std::string& name, const std::string& overload) {
  if (!absl::StartsWith(name, "aten::")) return "not an ATen operator";
  const std::string full = absl::StrCat(absl::StripPrefix(name, "aten::"), ".", overload);
  for (const Exclusion& exclusion : kExcluded) {
    if (absl::StartsWith(full, exclusion.prefix)) return exclusion.why;
  }
  return "";
}

}  // namespace ddpopt::cross_ref
