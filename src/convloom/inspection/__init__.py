"""Looking at networks and plans: filters, feature maps, curves and predictions as figures of
matplotlib; how long a step takes, and how far that is from the limit."""

from convloom.inspection.curves import Curve, CurveError, curve, plot_costs
from convloom.inspection.figures import open_window, save_figure
from convloom.inspection.filters import (
    FilterError,
    Filters,
    filters_of,
    layers_with_filters,
    plot_filters,
)
from convloom.inspection.maps import MapError, feature_maps, plot_maps
from convloom.inspection.predictions import Picked, PredictionError, pick, plot_predictions

__all__ = [
    "Curve",
    "CurveError",
    "FilterError",
    "Filters",
    "MapError",
    "Picked",
    "PredictionError",
    "curve",
    "feature_maps",
    "filters_of",
    "layers_with_filters",
    "open_window",
    "pick",
    "plot_costs",
    "plot_filters",
    "plot_maps",
    "plot_predictions",
    "save_figure",
]
