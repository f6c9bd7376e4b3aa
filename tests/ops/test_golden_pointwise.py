"""Neurons, sums, dropout, softmax and costs against golden vectors of cuda-convnet's."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.convnet.neurons import parse_neuron
from convloom.ops import (
    Activation,
    ChannelDropout,
    Concat,
    Dropout,
    DropoutGrad,
    Op,
    PointwiseLoss,
    ReLU,
    Softmax,
    WeightedSum,
)
from tests import golden
from tests.ops.gradcheck import close, evaluate, gradients


def neuron_op(text: str) -> Op:
    """The operation of a neuron."""
    neuron = parse_neuron(text)
    a, b = (*neuron.parameters, 0.0, 0.0)[:2]
    found: dict[str, Op] = {
        "ident": Activation("linear", 1.0),
        "relu": ReLU(),
        "logistic": Activation("sigmoid"),
        "brelu": Activation("clamp", 0.0, a),
        "abs": Activation("abs", -1.0),
        "square": Activation("square"),
        "sqrt": Activation("sqrt"),
        "softrelu": Activation("softplus", 1.0, 4.0),
        "tanh": Activation("tanh", a, b),
        "linear": Activation("linear", a, b),
        "drelu": Activation("drelu", a),
    }
    return found[neuron.kind]


@pytest.mark.parametrize("name", golden.names("neuron"))
def test_neuron(name: str) -> None:
    case = golden.load(name)
    op, x = neuron_op(case.params["neuron"]), case.images("x")
    close(evaluate(op, x)[0], case.images("y"))
    close(gradients(op, [x], case.images("g"))[0], case.images("dx"))


@pytest.mark.parametrize("name", golden.names("eltsum", "concat"))
def test_several_inputs(name: str) -> None:
    case = golden.load(name)
    op = WeightedSum(tuple(case.params["coeffs"])) if case.layer == "eltsum" else Concat()
    inputs = [case.images("x0"), case.images("x1")]
    close(evaluate(op, *inputs)[0], case.images("y"))
    grads = gradients(op, inputs, case.images("g"))
    for i in range(2):
        close(grads[i], case.images(f"dx{i}"))


@pytest.mark.parametrize("name", golden.names("hs"))
def test_dropout_without_rescaling(name: str) -> None:
    case = golden.load(name)
    op = Dropout(1 - case.params["keep"], rescale=False)
    x, g, mask = case.images("x"), case.images("g"), case.images("mask").astype(np.uint8)
    close(x * op.factor(mask, x.dtype), case.images("y_train"))
    rule = DropoutGrad(op.p, rescale=False)
    close(evaluate(rule, g, mask)[0], case.images("dx_train"))
    for kind in (op, ChannelDropout(op.p, rescale=False)):
        test = kind.inference()
        assert test is not None
        close(evaluate(test, x)[0], case.images("y_test"))
        close(gradients(test, [x], g)[0], case.images("dx_test"))


@pytest.mark.parametrize("name", golden.names("softmax+cost.logreg"))
def test_softmax(name: str) -> None:
    case = golden.load(name)
    x = case.images("x")
    close(evaluate(Softmax(), x)[0], case.images("p"))
    close(gradients(Softmax(), [x], case.images("g"))[0], case.images("dx_of_g"))


@pytest.mark.parametrize("name", golden.names("logistic+cost.crossent2"))
def test_cross_entropy_of_logistic_outputs(name: str) -> None:
    """As two layers, and as one loss of what goes into the logistic."""
    case = golden.load(name)
    y, z, t = (case.images(key) for key in "yzt")
    one = np.array(1.0)
    apart = PointwiseLoss("bce", "sum", 50.0)
    close(evaluate(Activation("sigmoid"), z)[0], y)
    close(evaluate(apart, y, t)[0], case.arrays["cost"])
    close(gradients(apart, [y, t], one, [0])[0], case.images("dy"))
    together = PointwiseLoss("bce_logits", "sum")
    close(evaluate(together, z, t)[0], case.arrays["cost"])
    close(gradients(together, [z, t], one, [0])[0], case.images("dz"))


@pytest.mark.parametrize("name", golden.names("cost.rflickr", "cost.sum2"))
def test_costs(name: str) -> None:
    case = golden.load(name)
    if case.layer == "cost.sum2":
        op, inputs, wanted = PointwiseLoss("square", "sum"), [case.images("x")], "dx"
    else:
        inputs = [case.images("y"), case.images("t")]
        op, wanted = PointwiseLoss("log_square", "sum"), "dy"
    close(evaluate(op, *inputs)[0], case.arrays["cost"])
    close(gradients(op, inputs, np.array(1.0), [0])[0], case.images(wanted))
