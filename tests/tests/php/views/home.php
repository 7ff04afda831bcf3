<p>Hello <?= Text::safe($name) ?>.</p>
