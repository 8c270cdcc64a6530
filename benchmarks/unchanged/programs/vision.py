"""Models of torchvision, timm, vit-pytorch, segmentation-models-pytorch and kornia, on small noise."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from benchmarks.unchanged.program import Group, learn

GROUP = Group("vision")


def _timm(name: str, size: int) -> object:
    import timm

    return learn(timm.create_model(name, pretrained=False, num_classes=4), (2, 3, size, size))


for name, size in {
    "test_vit": 160, "test_resnet": 64, "test_efficientnet": 64, "test_convnext": 64, "test_byobnet": 64,
    "test_nfnet": 64, "mobilenetv3_small_050": 32, "lcnet_035": 32, "mobilenetv4_conv_small_035": 64,
    "ghostnet_050": 32, "tinynet_e": 64, "efficientvit_b0": 64, "convnext_atto": 32, "repvit_m0_9": 32,
}.items():  # fmt: skip
    GROUP.add(f"timm-{name}", partial(_timm, name, size), "timm")


def _torchvision(name: str, size: int) -> object:
    model = import_module("torchvision.models").get_model(name, weights=None, num_classes=4)
    return learn(model, (2, 3, size, size))


for name, size in {"squeezenet1_1": 64, "shufflenet_v2_x0_5": 64, "mobilenet_v3_small": 64, "mnasnet0_5": 64}.items():
    GROUP.add(f"torchvision-{name}", partial(_torchvision, name, size), "torchvision.models")


def _resnet() -> object:
    from torchvision.models import ResNet
    from torchvision.models.resnet import BasicBlock

    return learn(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=4, width_per_group=64), (2, 3, 32, 32))


def _densenet() -> object:
    from torchvision.models import DenseNet

    return learn(DenseNet(8, (2, 2), 16, num_classes=4, memory_efficient=True), (2, 3, 32, 32))


def _swin() -> object:
    from torchvision.models import SwinTransformer

    model = SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4], num_classes=4, stochastic_depth_prob=0.3)
    return learn(model, (2, 3, 32, 32))


def _video() -> object:
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

    return learn(VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1, 1, 1, 1], BasicStem, 4), (2, 3, 4, 16, 16))


for name, train in {
    "resnet": _resnet,
    "densenet": _densenet,
    "swin": _swin,
    "video-resnet": _video,
}.items():
    GROUP.add(f"torchvision-{name}", train, "torchvision.models")

_VIT: dict[str, Any] = {
    "image_size": 32, "patch_size": 8, "num_classes": 4, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 32,
}  # fmt: skip


def _vit(module: str, kind: str, options: dict[str, Any]) -> object:
    return learn(getattr(import_module(module), kind)(**options), (2, 3, 32, 32))


for module, kind, options in [
    ("vit", "ViT", {**_VIT, "dropout": 0.1, "emb_dropout": 0.1}),
    ("simple_vit", "SimpleViT", _VIT),
    ("deepvit", "DeepViT", _VIT),
    ("cait", "CaiT", {**_VIT, "cls_depth": 1, "layer_dropout": 0.2}),
    ("pit", "PiT", {**_VIT, "depth": (1, 1)}),
    ("cct", "CCT", {"img_size": 32, "embedding_dim": 32, "num_layers": 2, "num_heads": 2, "num_classes": 4}),
    ("vit_for_small_dataset", "ViT", _VIT),
    ("parallel_vit", "ViT", {**_VIT, "num_parallel_branches": 2}),
    ("learnable_memory_vit", "ViT", _VIT),
    ("simple_vit_with_register_tokens", "SimpleViT", _VIT),
]:
    GROUP.add(f"vit-pytorch-{module}", partial(_vit, f"vit_pytorch.{module}", kind, options), "vit_pytorch")


def _segmentation(kind: str) -> object:
    import segmentation_models_pytorch as models

    options = {"encoder_name": "timm-mobilenetv3_small_minimal_100", "encoder_weights": None, "classes": 2}
    return learn(getattr(models, kind)(**options), (2, 3, 32, 32))


for kind in ("Unet", "FPN", "Linknet", "MAnet"):
    GROUP.add(f"segmentation-{kind}", partial(_segmentation, kind), "segmentation_models_pytorch")


@GROUP.program("kornia.augmentation", name="kornia-augmentation")
def _augmentation() -> object:
    import kornia.augmentation as kornia
    from torch import nn

    augment = kornia.AugmentationSequential(
        kornia.RandomHorizontalFlip(), kornia.RandomAffine(15.0), kornia.RandomErasing(), data_keys=["input"]
    )
    model = nn.Sequential(augment, nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    model[1:](torch.zeros(2, 3, 16, 16))
    return learn(model, (4, 3, 16, 16))
