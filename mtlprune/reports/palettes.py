"""Names that drawings not made by charts.py still use; goes with the last of them."""

from mtlprune.reports.pictures import BLACK as BLACK
from mtlprune.reports.pictures import NEGATIVE as NEGATIVE
from mtlprune.reports.pictures import POSITIVE as POSITIVE
from mtlprune.reports.pictures import WHITE as WHITE
from mtlprune.reports.pictures import Colour as Colour
from mtlprune.reports.pictures import Colours as Colours
from mtlprune.reports.pictures import diverging as diverging
from mtlprune.reports.pictures import ink as ink
from mtlprune.reports.pictures import opacity as opacity
