"""A small treebank with what real ones have: multiword tokens, empty nodes, documents, tags for some words only."""

TREEBANK = """\
# newdoc id = f
# sent_id = 1
# text = Le chat du voisin dort.
# a comment\twith a tab
1\tLe\tle\tDET\tD\tGender=Masc\t2\tdet\t2:det\t_
2\tchat\tchat\tNOUN\t_\t_\t6\tnsubj:pass\t6:nsubj:pass\tAlign=2|Gloss=cat
3-4\tdu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No|ner=B-LOC
3\tde\tde\tADP\tP\t_\t5\tcase\t5:case\t_
4\tle\tle\tDET\t_\t_\t5\tdet\t5:det\t_
5\tvoisin\tvoisin\tNOUN\tN\t_\t2\tnmod\t2:nmod:de\tner=B-PER|SpaceAfter=No
6\tdort\tdormir\tVERB\tV\t_\t0\troot\t0:root\t\u00a0odd
6.1\tici\t_\tADV\t_\t_\t_\t_\t6:advmod\tCopyOf=-1

# newdoc
# sent_id = 1
1\tSeul\t_\tADJ\tA\t_\t0\troot\t0:root\t_

1\t10 000\t_\tNUM\tN\t_\t0\troot\t_\t_

"""
