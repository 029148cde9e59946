"""Check `quantity`: numbers with units, in words, symbols and the LaTeX of SciBench."""

from schemas.examples import Prompt
from tasks.checks.quantity import agrees
from tests.tasks.prompts import prompt
from tests.tasks.verification.test_verify import entries, pairs


def ok(answer: str, reference: str, tolerance: float | None = None) -> bool:
    return agrees(asked(reference, tolerance), answer).ok


def asked(reference: str, tolerance: float | None = None) -> Prompt:
    return prompt(reference, "quantity", tolerance=tolerance)


EQUAL = r"""
5 kJ/mol == 5000 J mol^-1 | 5 kilojoules per mole == 5.00 $\mathrm{~kJ} \mathrm{~mol}^{-1}$
0.0507 kJ == 50.7 J | 50.7 == 50.7 $\mathrm{atm}$ | P = 50.7 atm. == 50.7 $\mathrm{atm}$
≈ 5.14 MPa == 50.7 atm | 9.8 m/s² == 9.8 $m/s^2$ | 9.8 meters per second squared == 9.8 m s^{-2}
2.5 × 10⁻³ m == 2.5 $10^{-3} \mathrm{~m}$ | 2.5 mm == 2.5 $10^{-3} \mathrm{~m}$
2.5e-3 == 2.5 $10^{-3} \mathrm{~m}$ | $2.5 \times 10^{-3}$ == 2.5 $10^{-3}$ | 5% == 5 $\%$
300.15 K == 27 $^{\circ} \mathrm{C}$ | 80.6 °F == 27 degrees Celsius | 3.14159 rad == 180 $^\circ$
8.314 J/(mol K) == 8.3147 $\mathrm{JK}^{-1} \mathrm{~mol}^{-1}$ | -273.15 °C == -273.15 °C
8.314 J/mol·K == 8.3147 $\mathrm{JK}^{-1} \mathrm{~mol}^{-1}$ | 1.356 J == 1 ft-lb | 32 °F == 0 °C
6.63e-34 J·s == 6.63 $10^{-34} \mathrm{~kg} \mathrm{~m}^2 / \mathrm{s}$ | 3 \mu C == 3e-6 C
1 psi == 1 $\mathrm{lb} \mathrm{in}^{-2}$ | 3.0 Å == 0.3 nm | 60 mph == 96.56 km/h
10^5 Pa == 1 bar | 1,234 m == 1.234 km | 3/4 m == 75 cm | 2 cubic centimeters == 2 mL
**5 kJ** == 5 kJ | \boxed{5 \text{ kJ}} == 5 kJ | ‑5 °C == -5 °C | 7 electrons == 7
1 N m == 1 J | 24.95 == 25 kJ | 5\times10^{-3} m == 5 mm
30\,\frac{\text{m}}{\text{s}^{2}} == 30 m/s^2 | 3 amps == 3 A | 100 Nm == 100 J
100 N.m == 100 J | 5 Ohm == 5 Ω | 760 mm Hg == 1 atm
1 electron volt == 1 eV | 20℃ == 20 °C | 20 deg C == 20 °C | 1.6*10^(-19) C == 1.6e-19 C
½ mol == 0.5 mol | 5\,000 m == 5 km | minus 5 °C == -5 °C | \$25 == $25
"""
DIFFERENT = r"""
5 J == 5 kJ == 0.005 is not 5 | 29 °C == 27 °C == 29 is not 27 | 27 == 27.5 °C == 27 is not 27.5
5 kJ == 5 kJ/mol == kilogram meter^2 second^-2 is not kilogram meter^2 mole^-1 second^-2
5 apples == 5 km == no dimension is not meter | 5 apples == 5 % == apple: no unit that is known
5 or 6 km == 5 km == is no number with a unit | 5 km and 3 m == 5 km == is no number with a unit
five km == 5 km == is no number with a unit | km == 5 km == is no number with a unit
-5 km == 5 km == -5 is not 5 | 5.06 km == 5 km == 5.06 is not 5 (within 1 %)
0,500 m == 500 m == is no number | 3\frac{1}{2} m == 15.5 m == is no number
5 km/h == 5 km == second^-1 is not meter | 1e999 km == 5 km == no number with a unit
0.001 K == 0 K == 0.001 is not 0 | NaN == 0 K == is no number
"""


def test_equal_quantities_agree() -> None:
    for answer, reference in pairs(EQUAL, " == "):
        outcome = agrees(asked(reference), answer)
        assert outcome.ok, (answer, outcome.detail)


def test_different_quantities_disagree_and_say_why() -> None:
    long = [("9" * 500, "5 km", "no number with a unit"), ("5 " + "m" * 190, "5 km", "is not")]
    for answer, reference, found in [*long, *(one.split(" == ") for one in entries(DIFFERENT))]:
        outcome = agrees(asked(reference), answer)
        assert not outcome.ok, answer
        assert found in outcome.detail


def test_the_tolerance_is_relative_to_the_reference_as_written() -> None:
    assert ok("10.4 m", "10 m", 0.05)
    assert not ok("10.6 m", "10 m", 0.05)
    assert not ok("10.4 m", "10 m")
    assert ok("28.3 °C", "27 °C", 0.05)
    assert not ok("30 °C", "27 °C", 0.05)  # 1 % in kelvin, 11 % of 27
