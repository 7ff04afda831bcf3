<p>From <?= Text::safe($who) ?>: <?= Text::safe($digest) ?></p>
