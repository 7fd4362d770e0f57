#include "fx_graph/format.h"

#include <cmath>
#include <limits>

#include "ATen/ops/empty.h"
#include "fx_graph/constants.h"
#include "fx_graph/graph.h"
#include "fx_graph/words.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::FindOperator;

std::string Float(double value) {
  std::string text;
  AppendPythonFloat(value, &text);
  return text;
}

std::string Repr(const std::string& value) {
  std::string text;
  AppendPythonString(value, &text);
  return text;
}

std::string Format(const Argument& argument, FormatStyle style = FormatStyle::kFormatNode, bool exact = false) {
  std::string text;
  AppendArgument(argument, style, {.exact = exact}, &text);
  return text;
}

TEST(Format, FloatsAsPythonsRepr) {
  EXPECT_EQ(Float(2.0), "2.0");
  EXPECT_EQ(Float(-0.0), "-0.0");
  EXPECT_EQ(Float(0.1), "0.1");
  EXPECT_EQ(Float(1e-5), "1e-05");
  EXPECT_EQ(Float(0.0001), "0.0001");
  EXPECT_EQ(Float(1e16), "1e+16");
  EXPECT_EQ(Float(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(Float(1e22), "1e+22");
  EXPECT_EQ(Float(1e100), "1e+100");
  EXPECT_EQ(Float(5e-324), "5e-324");
  EXPECT_EQ(Float(-3.4028234663852886e38), "-3.4028234663852886e+38");
  EXPECT_EQ(Float(123456.789), "123456.789");
  EXPECT_EQ(Float(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(Float(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(Float(std::nan("")), "nan");
}

TEST(Format, ComplexAsPythonsRepr) {
  const auto format = [](double real, double imaginary) { return Format(IValue(c10::complex<double>(real, imaginary))); };
  EXPECT_EQ(format(1, 2), "(1+2j)");
  EXPECT_EQ(format(0, 1), "1j");
  EXPECT_EQ(format(-0.0, 1), "(-0+1j)");
  EXPECT_EQ(format(0, -2.5), "-2.5j");
  EXPECT_EQ(format(1.5, -0.0), "(1.5-0j)");
  EXPECT_EQ(format(1e16, 1e-5), "(1e+16+1e-05j)");
  EXPECT_EQ(format(std::nan(""), INFINITY), "(nan+infj)");
}

TEST(Format, StringsAsPythonsRepr) {
  EXPECT_EQ(Repr("mean"), "'mean'");
  EXPECT_EQ(Repr("it's"), "\"it's\"");
  EXPECT_EQ(Repr("it's \"x\""), "'it\\'s \"x\"'");
  EXPECT_EQ(Repr("a\\b\n\t\r\x01\x7f"), "'a\\\\b\\n\\t\\r\\x01\\x7f'");
  EXPECT_EQ(Repr("\u00e9\u00a0\u200b\U0001f600"), "'\u00e9\\xa0\\u200b\U0001f600'");
  EXPECT_EQ(Repr("\xff"), "'\\udcff'");
  EXPECT_EQ(Repr(std::string("\0", 1)), "'\\x00'");
}

TEST(Format, ValuesOfEachKind) {
  EXPECT_EQ(Format(Argument()), "None");
  EXPECT_EQ(Format(IValue(true)), "True");
  EXPECT_EQ(Format(IValue(-7)), "-7");
  EXPECT_EQ(Format(IValue("a, b")), "a, b");
  EXPECT_EQ(Format(IValue("a, b"), FormatStyle::kRepr), "'a, b'");
  EXPECT_EQ(Format(DtypeConstant(c10::ScalarType::BFloat16)), "torch.bfloat16");
  EXPECT_EQ(Format(DtypeConstant(c10::ScalarType::Float8_e4m3fn)), "torch.float8_e4m3fn");
  EXPECT_EQ(Format(DtypeConstant(c10::ScalarType::UInt16)), "torch.uint16");
  EXPECT_EQ(Format(LayoutConstant(c10::Layout::Sparse)), "torch.sparse_coo");
  EXPECT_EQ(Format(MemoryFormatConstant(c10::MemoryFormat::ChannelsLast)), "torch.channels_last");
  EXPECT_EQ(Format(EllipsisConstant()), "Ellipsis");
  EXPECT_EQ(Format(OpaqueConstant("<object>", "Foo")), "<object>");
  EXPECT_EQ(Format(OpaqueConstant("<object>", "Foo"), FormatStyle::kFormatNode, true), "opaque('<object>', 'Foo')");
  EXPECT_EQ(Format(IValue(c10::Device("cuda:1"))), "cuda:1");
  EXPECT_EQ(Format(IValue(c10::Device("cuda:1")), FormatStyle::kRepr), "device(type='cuda', index=1)");
  EXPECT_EQ(Format(IValue(c10::Device("cpu")), FormatStyle::kRepr), "device(type='cpu')");
  EXPECT_EQ(Format(IValue(std::vector<int64_t>{1, -1})), "[1, -1]");
  EXPECT_EQ(Format(Argument::Tuple({IValue(1)})), "(1,)");
  EXPECT_EQ(Format(Argument::Tuple({})), "()");
  EXPECT_EQ(Format(Argument::List({Argument::Tuple({IValue(1), IValue("x")})})), "[(1, x)]");
  EXPECT_EQ(Format(Argument::Dict({IValue("key"), IValue("v"), IValue(2), Argument()})), "{key: v, 2: None}");
  EXPECT_EQ(Format(Argument::Dict({IValue("key"), IValue("v")}), FormatStyle::kRepr), "{'key': 'v'}");
}

TEST(Format, BoundsOfASliceArePrintedByPython) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  EXPECT_EQ(Format(Argument::Tuple({Argument::Slice(Argument(), x, IValue("s")), x})), "(slice(None, x, 's'), %x)");
}

TEST(Format, NodesOfEachKind) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  x->meta().type_expr = "torch.Tensor";
  Node* dflt = graph.CreateNode(Op::kPlaceholder, PathTarget{"n"}, {IValue("text")});
  Node* device = graph.CreateNode(Op::kPlaceholder, PathTarget{"d"}, {Argument::List({IValue(c10::Device("cpu"))})});
  Node* w = graph.GetAttr("layer.weight");
  Node* to = graph.CallFunction(FindOperator("aten::to", "dtype"), {x, IValue(15)}, {{"memory_format", IValue(2)}});
  Node* method = graph.CallMethod("to", {to, DtypeConstant(c10::ScalarType::Float)}, {{"device", IValue(c10::Device("cpu"))}});
  Node* module = graph.CallModule("layer.0", {method});
  Node* cond = graph.CreateNode(Op::kCallFunction, HigherOrderTarget{"cond"}, {module, w});
  Node* item = graph.CreateNode(Op::kCallFunction, OpaqueTarget{"operator.getitem"}, {cond, IValue(0)}, {}, "getitem");
  Node* output = graph.Output(Argument::Tuple({item, IValue("s")}));
  EXPECT_EQ(x->ToString(), "%x : torch.Tensor [num_users=1] = placeholder[target=x]");
  EXPECT_EQ(dflt->ToString(), "%n : [num_users=0] = placeholder[target=n](default=text)");
  EXPECT_EQ(device->ToString(), "%d : [num_users=0] = placeholder[target=d](default=[device(type='cpu')])");
  EXPECT_EQ(w->ToString(), "%layer_weight : [num_users=1] = get_attr[target=layer.weight]");
  EXPECT_THAT(to->ToString(), ::testing::HasSubstr("= call_function[target=torch.ops.aten.to.dtype](args = (%x, torch.bfloat16), "
                                                   "kwargs = {memory_format: torch.channels_last})"));
  EXPECT_THAT(method->ToString(), ::testing::HasSubstr("= call_method[target=to](args = (%" + std::string(to->name()) +
                                                       ", torch.float32), kwargs = {device: cpu})"));
  EXPECT_THAT(module->ToString(),
              ::testing::EndsWith("call_module[target=layer.0](args = (%" + std::string(method->name()) + ",), kwargs = {})"));
  EXPECT_THAT(cond->ToString(), ::testing::HasSubstr("call_function[target=torch.ops.higher_order.cond](args = (%"));
  EXPECT_EQ(output->ToString(), "return (getitem, 's')");
  output->meta().type_expr = "tuple";
  EXPECT_THAT(graph.ToString(), ::testing::StartsWith("graph() -> tuple:\n    %x : torch.Tensor [num_users=1]"));
}

TEST(Format, StringAndDeviceResultsAreBare) {
  Graph graph;
  EXPECT_EQ(graph.Output(IValue("done"))->ToString(), "return done");
  Graph other;
  const Node* output = other.Output(IValue(c10::Device("cpu")));
  EXPECT_EQ(output->ToString(), "return cpu");
  std::string exact;
  AppendNode(*output, {.exact = true}, &exact);
  EXPECT_EQ(exact, "return device(type='cpu')");
}

TEST(Format, ExactFormQuotesWhatWouldReadAsSomethingElse) {
  const auto exact = [](const char* text) { return Format(IValue(text), FormatStyle::kFormatNode, true); };
  EXPECT_EQ(exact("mean"), "mean");
  for (const char* text : {"None", "True", "cpu", "cuda:0", "torch.float32", "inf", "nan", "Ellipsis"}) {
    EXPECT_EQ(exact(text), "'" + std::string(text) + "'");
  }
  EXPECT_EQ(exact("1"), "'1'");
  EXPECT_EQ(exact(""), "''");
  EXPECT_EQ(exact("a b"), "'a b'");
  EXPECT_EQ(exact("ij,jk->ik"), "'ij,jk->ik'");
}

TEST(Words, AreClassified) {
  IValue value;
  const auto kind = [&](const char* word) { return ClassifyWord(word, &value); };
  EXPECT_EQ(kind("None"), WordKind::kNone);
  EXPECT_EQ(kind("-12"), WordKind::kInt);
  EXPECT_EQ(value.toInt(), -12);
  EXPECT_EQ(kind("-9223372036854775808"), WordKind::kInt);
  EXPECT_EQ(kind("9223372036854775808"), WordKind::kBigInt);
  EXPECT_EQ(kind("1e-05"), WordKind::kFloat);
  EXPECT_EQ(value.toDouble(), 1e-5);
  EXPECT_EQ(kind("-inf"), WordKind::kFloat);
  EXPECT_EQ(value.toDouble(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(kind("nan"), WordKind::kFloat);
  EXPECT_EQ(kind("1e999"), WordKind::kFloat);
  EXPECT_EQ(kind("(1-2.5j)"), WordKind::kComplex);
  EXPECT_EQ(value.toComplexDouble(), c10::complex<double>(1, -2.5));
  EXPECT_EQ(kind("2j"), WordKind::kComplex);
  EXPECT_EQ(kind("Ellipsis"), WordKind::kEllipsis);
  EXPECT_EQ(kind("torch.complex64"), WordKind::kDtype);
  EXPECT_EQ(kind("torch.strided"), WordKind::kLayout);
  EXPECT_EQ(kind("torch.preserve_format"), WordKind::kMemoryFormat);
  EXPECT_EQ(kind("cuda:7"), WordKind::kDevice);
  EXPECT_EQ(value.toDevice(), c10::Device("cuda:7"));
  EXPECT_EQ(kind("<function f>"), WordKind::kOpaque);
  for (const char* word :
       {"mean", "1.2.3", "--1", "1e", "torch.nothing", "cuda:x", "cuda:01", "cuda:999", "infinity", "nano", "True1", "(1)", "+", "-", ""}) {
    EXPECT_EQ(kind(word), WordKind::kString) << word;
  }
}

TEST(Constants, AreSharedAndFitSchemas) {
  EXPECT_TRUE(DtypeConstant(c10::ScalarType::Float).is(DtypeConstant(c10::ScalarType::Float)));
  EXPECT_EQ(AsTypedConstant(IValue(1)), nullptr);
  EXPECT_EQ(DispatcherValue(DtypeConstant(c10::ScalarType::Double)).toInt(), 7);
  EXPECT_TRUE(DispatcherValue(EllipsisConstant()).isCapsule());
  std::vector<Argument> args = {Argument(), DtypeConstant(c10::ScalarType::Half), IValue(2)};
  Kwargs kwargs = {{"memory_format", MemoryFormatConstant(c10::MemoryFormat::Preserve)}, {"copy", DtypeConstant(c10::ScalarType::Half)}};
  FitToSchema(OperatorTarget{FindOperator("aten::to", "dtype")}, &args, &kwargs);
  EXPECT_EQ(args[1].constant().toInt(), 5);
  EXPECT_EQ(args[2].constant().toInt(), 2);
  EXPECT_EQ(kwargs[0].second.constant().toInt(), 1);
  EXPECT_TRUE(kwargs[1].second.constant().isCapsule());  // no dtype is wanted there: whoever runs it says so
}

TEST(Constants, EveryNameReadsBack) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    if (DtypeName(dtype).empty()) continue;
    c10::ScalarType read;
    ASSERT_TRUE(DtypeFromName(DtypeName(dtype), &read)) << DtypeName(dtype);
    EXPECT_EQ(read, dtype);
  }
}

}  // namespace
}  // namespace ddpopt::fx
