<p>There is no <?= Text::safe($path) ?>.</p>
