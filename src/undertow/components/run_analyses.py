"""The original's analyses of a recorded run, with the verdicts of its diagnosis."""

from collections.abc import Sequence

from undertow.analyze.run_series import (
    RunNumbers,
    gradient_norms,
    gradient_sketches,
    live_shares,
    measured_layers,
    module_network,
    network_shares,
    newest_values,
    parameter_topology,
    training_series,
)
from undertow.analyze.unit_activity import activity_around
from undertow.components.enhanced_analysis import enhanced_analysis
from undertow.components.flow_visualizer import GradientFlowVisualizer
from undertow.components.gradient_flow import gradient_flow
from undertow.components.run_verdicts import RunVerdicts
from undertow.schema import Finding
from undertow.schema.seeds.enhanced import AnalysisDepth, EnhancedLayerGradientAnalysis
from undertow.schema.seeds.flow_records import GradientFlowVisualization, GradientVisualizationConfig


def flow_of_run(
    run: RunNumbers, findings: Sequence[Finding], config: GradientVisualizationConfig | None = None
) -> GradientFlowVisualization:
    """Layers are the parameters, nodes the modules of the executed graph.

    Gains along edges are of the gradient at the modules' outputs where it was recorded, otherwise of the gradient of
    all parameters of each module together; shares are those measured along connections. Verdicts are those of the
    `findings`.
    """
    config = GradientFlowVisualizer(config).config  # which is checked
    layers = measured_layers(run)
    series = gradient_norms(run, layers)
    nodes, topology = module_network(run, series, layers)
    shares, unmeasured = (None, "") if topology is None else network_shares(run, topology, config.temporal_window)
    columns = [layer.id for layer in layers]
    cosines = run.matrix("gradient_cosine")[:, columns] if "gradient_cosine" in run.quantities else None
    return gradient_flow(
        series,
        config,
        topology=topology,
        node_series=nodes,
        region_topology=parameter_topology(run.graph, layers),
        cosines=cosines,
        sketches=gradient_sketches(run, layers, series),
        unit_activity=activity_around(
            run.graph, run.layers, layers, live_shares(run), newest_values(run, "activation_calls")
        ),
        run_verdicts=RunVerdicts(findings),
        shares=shares,
        unmeasured=unmeasured,
        owners={layer.path: layer.group for layer in layers} if nodes is not None else None,
    )


def dynamics_of_run(
    run: RunNumbers,
    findings: Sequence[Finding],
    *,
    depth: AnalysisDepth = AnalysisDepth.STANDARD,
    window: int = 100,
    threshold: float = 0.8,
    whole: RunNumbers | None = None,
) -> EnhancedLayerGradientAnalysis:
    """The enhanced analysis, with the loss, the learning rate, the updates and the activity of units of this run.

    `whole` is the run whose newest steps `run` is: the course of its loss is cheap to read from the start on.
    """
    layers = measured_layers(run)
    return enhanced_analysis(
        gradient_norms(run, layers),
        training_series(run, layers, whole or run),
        topology=parameter_topology(run.graph, layers),
        depth=depth,
        window=window,
        threshold=threshold,
        run_verdicts=RunVerdicts(findings),
    )
