"""What is handed to the loss is not what the loss is meant for."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, share_correct


class Convolutional(nn.Module):
    def __init__(self, softmax: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Linear(24 * 16, 10)
        self.softmax = nn.Softmax(dim=1) if softmax else nn.Identity()  # at fault

    def forward(self, pictures: Tensor) -> Tensor:
        features = self.features(pictures.view(-1, 1, 8, 8)).flatten(1)
        return self.softmax(self.classifier(features))


@sick(
    "LSS001", steps=100, layers=("softmax", "classifier"), architecture="convolutional", catalogue=(25,),
    change="nn.CrossEntropyLoss takes logits: no softmax in the model",
)  # fmt: skip
def softmax_before_cross_entropy(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The model ends in a softmax and the loss is `CrossEntropyLoss`, which takes another one."""
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(*glyphs(seed)), batch_size=64, shuffle=True)
    model = Convolutional(softmax=fault.on)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step, loss = 0, torch.tensor(0.0)
    while step < steps:
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(pictures), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "LSS002", steps=200, bites="error", architecture="perceptron", catalogue=(26,),
    change="model(inputs).squeeze(1), so that prediction and target have one shape",
)  # fmt: skip
def broadcast_square_error(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A prediction of shape [64, 1] minus a target of shape [64] is a table of 64 × 64 errors."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        prediction = model(inputs[batch])
        if not fault:
            prediction = prediction.squeeze(1)
        loss = ((prediction - targets[batch]) ** 2).mean()  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test, answers = curves(seed + 1000)
    with torch.no_grad():
        error = functional.mse_loss(model(test).squeeze(1), answers) / answers.var()
    return {"loss": loss.item(), "error": error.item()}
