"""Check `math`: what means the same agrees, and nothing that a model writes hangs or fills the
memory."""

import pytest

from tasks.checks.math import agrees
from tests.tasks.prompts import prompt
from tests.tasks.verification.test_verify import pairs

SAME = r"""
\frac{2}{4} == 1/2 | $\dfrac{1}{2}$ == 0.5 | 7 1/2 == \frac{15}{2} | 1e5 == 100000 | x = 3 == 3
(x+1)^2 == x^2 + 2x + 1 | (x+1)**2 == x^2 + 2x + 1 | 2\sqrt{2} == sqrt(8) | 3 == x = 3
pi/2 == \frac{\pi}{2} | 1 - cos(x)^2 == \sin^2 x | 2, 1 == \{1, 2\} | x = 1 or x = 2 == \{1, 2\}
(-∞, 2] == (-\infty, 2] | (1, 2) == 1 < x < 2 | y - 1 = 2x == y = 2x + 1 | \boxed{17} == 17
**x+1** == x + 1 | x – 1 == x - 1 | 50% == 0.5 | 12 cm == 12 | No solution. == no solution
0.333333 == 1/3 | x² + 1 == x^2 + 1 | 1 + x^2. == x^2 + 1 | x⁻¹ == 1/x | x^-1 == 1/x
10^-3 == 0.001 | 10² == 100 | √(x+1) == \sqrt{x+1} | 6·x·y == 6xy | x ⩽ 3 == x \le 3
1\,234 == 1234
\begin{pmatrix}1\\2\end{pmatrix} == \begin{pmatrix} 1 \\ 2 \end{pmatrix}
"""
# an equation that is not solved, and an inequality that could be the question, among them
OTHER = r"""
1/3 == 1/2 | 0.3333 == 1/3 | [1, 2] == (1, 2) | 1, 2 == 2 | 2 or 3 == 3 | 2x = 6 == 3
1 < x < 2 == (1, 2) | x^2 == 2x | 7 == no solution | NaN == 3 | ∞ - ∞ == 0 | I do not know == 3
10² == 102 | 0,500 == 500
(1+x)^{49}(x+2) == (x+1)^{50}
"""


@pytest.mark.parametrize(("table", "same"), [(SAME, True), (OTHER, False)])
def test_what_means_the_same_agrees_and_what_means_something_else_does_not(table, same):
    for answer, reference in pairs(table, " == "):
        outcome = agrees(prompt(reference, "math"), answer)
        assert outcome.ok is same, (answer, reference, outcome.detail)
