#include "tools/estimate/torchvision_models.h"

#include <algorithm>
#include <iterator>

#include "tools/estimate/image_network.h"

namespace vramledger {
namespace {

constexpr uint64_t kClasses = 1000;

// ---- the models ----

// arXiv:1404.5997, as torchvision has it.
void Alexnet(ImageNetwork* n) {
  const struct {
    uint64_t out, kernel, stride, pad;
    bool pool;
  } layers[] = {
      {64, 11, 4, 2, true}, {192, 5, 1, 2, true}, {384, 3, 1, 1, false}, {256, 3, 1, 1, false}, {256, 3, 1, 1, true}};
  for (const auto& l : layers) {
    n->Convolution(l.out, l.kernel, l.stride, l.pad, 1, true);
    n->Activation("relu");
    if (l.pool) n->MaxPool(3, 2, 0);
  }
  n->AdaptivePool(6);
  n->Flatten();
  for (int i = 0; i < 2; ++i) {
    n->Dropout(0.5);
    n->Linear(4096);
    n->Activation("relu");
  }
  n->Linear(kClasses);
}

// arXiv:1409.1556, table 1; `repeats` convolutions in each of the five stages.
void Vgg(ImageNetwork* n, const uint64_t (&repeats)[5]) {
  constexpr uint64_t kWidths[] = {64, 128, 256, 512, 512};
  for (int stage = 0; stage < 5; ++stage) {
    for (uint64_t i = 0; i < repeats[stage]; ++i) {
      n->Convolution(kWidths[stage], 3, 1, 1, 1, true);
      n->Activation("relu");
    }
    n->MaxPool(2, 2, 0);
    n->Close();
  }
  n->AdaptivePool(7);
  n->Flatten();
  for (int i = 0; i < 2; ++i) {
    n->Linear(4096);
    n->Activation("relu");
    n->Dropout(0.5);
  }
  n->Linear(kClasses);
}

struct ResnetShape {
  uint64_t blocks[4];
  bool bottleneck;
  uint64_t groups = 1, width_per_group = 64;
};
// arXiv:1512.03385, table 1, with the stride in the 3 x 3 convolution; groups as in arXiv:1611.05431.
void Resnet(ImageNetwork* n, const ResnetShape& shape) {
  n->ConvBnAct(64, 7, 2, 1, "relu");
  n->MaxPool(3, 2, 1);
  n->Close();
  const uint64_t expansion = shape.bottleneck ? 4 : 1;
  for (uint64_t stage = 0; stage < 4; ++stage) {
    const uint64_t planes = uint64_t{64} << stage;
    for (uint64_t i = 0; i < shape.blocks[stage]; ++i) {
      const uint64_t stride = i == 0 && stage != 0 ? 2 : 1;
      const int32_t in = n->x();
      const uint64_t from = n->channels();
      if (shape.bottleneck) {
        const uint64_t width = planes * shape.width_per_group / 64 * shape.groups;
        n->ConvBnAct(width, 1, 1, 1, "relu");
        n->ConvBnAct(width, 3, stride, shape.groups, "relu");
        n->ConvBnAct(planes * expansion, 1, 1, 1, "");
      } else {
        n->ConvBnAct(planes, 3, stride, 1, "relu");
        n->ConvBnAct(planes, 3, 1, 1, "");
      }
      int32_t out = n->x(), identity = in;
      if (stride != 1 || from != planes * expansion) {
        n->Take(in);
        n->ConvBnAct(planes * expansion, 1, stride, 1, "");
        identity = n->x();
      }
      n->Take(out);
      n->Add(identity);
      n->Activation("relu");
      n->Close();
    }
  }
  n->AdaptivePool(1);
  n->Flatten();
  n->Linear(kClasses);
}

// arXiv:1801.04381, table 2.
void MobilenetV2(ImageNetwork* n) {
  constexpr uint64_t kStages[][4] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                                     {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  n->ConvBnAct(32, 3, 2, 1, "relu6");
  for (const auto& [expand, out, repeat, first] : kStages) {
    for (uint64_t i = 0; i < repeat; ++i) {
      const uint64_t stride = i == 0 ? first : 1, in = n->channels(), hidden = in * expand;
      const int32_t x = n->x();
      if (expand != 1) n->ConvBnAct(hidden, 1, 1, 1, "relu6");
      n->ConvBnAct(hidden, 3, stride, hidden, "relu6");
      n->ConvBnAct(out, 1, 1, 1, "");
      if (stride == 1 && in == out) n->Add(x);
      n->Close();
    }
  }
  n->ConvBnAct(1280, 1, 1, 1, "relu6");
  n->AdaptivePool(1);
  n->Flatten();
  n->Dropout(0.2);
  n->Linear(kClasses);
}

uint64_t Divisible(double value, uint64_t by) {
  const auto rounded = std::max<uint64_t>(by, static_cast<uint64_t>(value + static_cast<double>(by) / 2) / by * by);
  return static_cast<double>(rounded) < 0.9 * value ? rounded + by : rounded;
}

// arXiv:1905.02244, tables 1 and 2.
void MobilenetV3(ImageNetwork* n, bool large) {
  struct Block {
    uint64_t kernel, expanded, out;
    bool excite, hard;
    uint64_t stride;
  };
  static constexpr Block kLarge[] = {
      {3, 16, 16, false, false, 1}, {3, 64, 24, false, false, 2}, {3, 72, 24, false, false, 1},
      {5, 72, 40, true, false, 2},  {5, 120, 40, true, false, 1}, {5, 120, 40, true, false, 1},
      {3, 240, 80, false, true, 2}, {3, 200, 80, false, true, 1}, {3, 184, 80, false, true, 1},
      {3, 184, 80, false, true, 1}, {3, 480, 112, true, true, 1}, {3, 672, 112, true, true, 1},
      {5, 672, 160, true, true, 2}, {5, 960, 160, true, true, 1}, {5, 960, 160, true, true, 1}};
  static constexpr Block kSmall[] = {
      {3, 16, 16, true, false, 2}, {3, 72, 24, false, false, 2}, {3, 88, 24, false, false, 1},
      {5, 96, 40, true, true, 2},  {5, 240, 40, true, true, 1},  {5, 240, 40, true, true, 1},
      {5, 120, 48, true, true, 1}, {5, 144, 48, true, true, 1},  {5, 288, 96, true, true, 2},
      {5, 576, 96, true, true, 1}, {5, 576, 96, true, true, 1}};
  n->ConvBnAct(16, 3, 2, 1, "hardswish");
  const auto run = [&](const Block& k) {
    const uint64_t in = n->channels();
    const int32_t x = n->x();
    const char* act = k.hard ? "hardswish" : "relu";
    if (k.expanded != in) n->ConvBnAct(k.expanded, 1, 1, 1, act);
    n->ConvBnAct(k.expanded, k.kernel, k.stride, k.expanded, act);
    if (k.excite) n->Excite(Divisible(static_cast<double>(k.expanded) / 4, 8), "aten::relu", "aten::hardsigmoid");
    n->ConvBnAct(k.out, 1, 1, 1, "");
    if (k.stride == 1 && in == k.out) n->Add(x);
    n->Close();
  };
  if (large) {
    for (const Block& k : kLarge) run(k);
  } else {
    for (const Block& k : kSmall) run(k);
  }
  n->ConvBnAct(6 * n->channels(), 1, 1, 1, "hardswish");
  n->AdaptivePool(1);
  n->Flatten();
  n->Linear(large ? 1280 : 1024);
  n->SavedCopyActivation("aten::hardswish");
  n->Dropout(0.2);
  n->Linear(kClasses);
}

// arXiv:1905.11946, table 1 (B0).
void EfficientnetB0(ImageNetwork* n) {
  constexpr uint64_t kStages[][5] = {{1, 3, 1, 16, 1},  {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3},
                                     {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1}};
  n->ConvBnAct(32, 3, 2, 1, "silu");
  int block = 0;
  for (const auto& [expand, kernel, first, out, repeat] : kStages) {
    for (uint64_t i = 0; i < repeat; ++i, ++block) {
      const uint64_t stride = i == 0 ? first : 1, in = n->channels(), hidden = in * expand;
      const int32_t x = n->x();
      if (expand != 1) n->ConvBnAct(hidden, 1, 1, 1, "silu");
      n->ConvBnAct(hidden, kernel, stride, hidden, "silu");
      n->Excite(std::max<uint64_t>(1, in / 4), "aten::silu", "aten::sigmoid");
      n->ConvBnAct(out, 1, 1, 1, "");
      if (stride == 1 && in == out) {
        n->StochasticDepth(0.2 * block / 16);
        n->Add(x);
      }
      n->Close();
    }
  }
  n->ConvBnAct(1280, 1, 1, 1, "silu");
  n->AdaptivePool(1);
  n->Flatten();
  n->Dropout(0.2);
  n->Linear(kClasses);
}

// arXiv:1608.06993, table 1: growth 32, bottlenecks of 4 x growth.
void Densenet(ImageNetwork* n, const uint64_t (&blocks)[4]) {
  n->ConvBnAct(64, 7, 2, 1, "relu");
  n->MaxPool(3, 2, 1);
  n->Close();
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<int32_t> features = {n->x()};
    uint64_t channels = n->channels();
    const uint64_t batch = n->builder().ShapeOf(n->x())[0], side = n->side();
    for (uint64_t i = 0; i < blocks[stage]; ++i) {
      n->Take(n->builder().Apply("aten::cat", features, {batch, channels, side, side}));
      n->BatchNorm();
      n->Activation("relu");
      n->Convolution(128, 1, 1, 0);
      n->BatchNorm();
      n->Activation("relu");
      n->Convolution(32, 3, 1, 1);
      features.push_back(n->x());
      channels += 32;
      n->Close();
    }
    n->Take(n->builder().Apply("aten::cat", features, {batch, channels, side, side}));
    n->BatchNorm();
    n->Activation("relu");
    if (stage == 3) break;
    n->Convolution(channels / 2, 1, 1, 0);
    n->AveragePool(2);
    n->Close();
  }
  n->AdaptivePool(1);
  n->Flatten();
  n->Linear(kClasses);
}

// arXiv:2201.03545, section 3.
void Convnext(ImageNetwork* n, const uint64_t (&widths)[4], const uint64_t (&blocks)[4], double depth) {
  n->Convolution(widths[0], 4, 4, 0, 1, true);
  n->LayerNorm2d();
  n->Close();
  double seen = 0, all = 0;
  for (const uint64_t b : blocks) all += static_cast<double>(b);
  for (int stage = 0; stage < 4; ++stage) {
    const uint64_t width = widths[stage];
    for (uint64_t i = 0; i < blocks[stage]; ++i, ++seen) {
      const int32_t in = n->x();
      const std::vector<uint64_t> shape = n->builder().ShapeOf(in);
      n->Convolution(width, 7, 1, 3, width, true);
      n->LayerNorm2d();
      const uint64_t rows = n->builder().Numel(n->x()) / width;
      n->Take(n->builder().list().View(n->x(), {rows, width}));
      n->Linear(4 * width);
      n->Activation("gelu");
      n->Linear(width);
      n->Take(n->builder().Multiply(n->builder().list().View(n->x(), shape), n->builder().Parameter({width, 1, 1})));
      n->StochasticDepth(depth * seen / (all - 1));
      n->Add(in);
      n->Close();
    }
    if (stage == 3) break;
    n->LayerNorm2d();
    n->Convolution(widths[stage + 1], 2, 2, 0, 1, true);
    n->Close();
  }
  n->AdaptivePool(1);
  n->LayerNorm2d();
  n->Flatten();
  n->Linear(kClasses);
}

struct Entry {
  std::string_view name;
  void (*build)(ImageNetwork*);
};
constexpr Entry kModels[] = {
    {"alexnet", Alexnet},
    {"convnext_tiny",
     [](ImageNetwork* n) {
       Convnext(n, {96, 192, 384, 768}, {3, 3, 9, 3}, 0.1);
     }},
    {"convnext_small",
     [](ImageNetwork* n) {
       Convnext(n, {96, 192, 384, 768}, {3, 3, 27, 3}, 0.4);
     }},
    {"convnext_base",
     [](ImageNetwork* n) {
       Convnext(n, {128, 256, 512, 1024}, {3, 3, 27, 3}, 0.5);
     }},
    {"convnext_large",
     [](ImageNetwork* n) {
       Convnext(n, {192, 384, 768, 1536}, {3, 3, 27, 3}, 0.5);
     }},
    {"densenet121",
     [](ImageNetwork* n) {
       Densenet(n, {6, 12, 24, 16});
     }},
    {"densenet169",
     [](ImageNetwork* n) {
       Densenet(n, {6, 12, 32, 32});
     }},
    {"densenet201",
     [](ImageNetwork* n) {
       Densenet(n, {6, 12, 48, 32});
     }},
    {"efficientnet_b0", EfficientnetB0},
    {"mobilenet_v2", MobilenetV2},
    {"mobilenet_v3_large", [](ImageNetwork* n) { MobilenetV3(n, true); }},
    {"mobilenet_v3_small", [](ImageNetwork* n) { MobilenetV3(n, false); }},
    {"resnet18",
     [](ImageNetwork* n) {
       Resnet(n, {{2, 2, 2, 2}, false});
     }},
    {"resnet34",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 4, 6, 3}, false});
     }},
    {"resnet50",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 4, 6, 3}, true});
     }},
    {"resnet101",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 4, 23, 3}, true});
     }},
    {"resnet152",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 8, 36, 3}, true});
     }},
    {"resnext50_32x4d",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 4, 6, 3}, true, 32, 4});
     }},
    {"wide_resnet50_2",
     [](ImageNetwork* n) {
       Resnet(n, {{3, 4, 6, 3}, true, 1, 128});
     }},
    {"vgg11",
     [](ImageNetwork* n) {
       Vgg(n, {1, 1, 2, 2, 2});
     }},
    {"vgg13",
     [](ImageNetwork* n) {
       Vgg(n, {2, 2, 2, 2, 2});
     }},
    {"vgg16",
     [](ImageNetwork* n) {
       Vgg(n, {2, 2, 3, 3, 3});
     }},
    {"vgg19",
     [](ImageNetwork* n) {
       Vgg(n, {2, 2, 4, 4, 4});
     }},
};

}  // namespace

std::vector<std::string> TorchvisionNames() {
  std::vector<std::string> out;
  for (const Entry& e : kModels) out.emplace_back(e.name);
  return out;
}

bool IsTorchvisionName(std::string_view name) {
  return std::any_of(std::begin(kModels), std::end(kModels), [&](const Entry& e) { return e.name == name; });
}

ForwardGraph BuildTorchvision(std::string_view name, uint64_t batch, Precision precision) {
  ImageNetwork network(batch, precision);
  for (const Entry& e : kModels) {
    if (e.name == name) e.build(&network);
  }
  return network.Finish();
}

}  // namespace vramledger
