"""Checks, fits, and the protocol that every study keeps."""

import dataclasses
import math

import pytest

from attnflow.studies import Check, studies


def test_a_check_of_a_number_that_is_not_there_fails():
    assert not Check("time", math.nan, 1.0, math.inf).ok
    assert Check("time", 1.25, 1.0, 0.25).ok
    assert not Check("time", 1.25, 1.0, 0.2).ok
